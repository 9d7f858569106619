"""Kafka and S3 servers for development, the demo and tests; not for production."""
