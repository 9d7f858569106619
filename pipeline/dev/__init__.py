"""Kafka and S3 servers for development, the demo and tests. Nothing that a user runs in production."""
