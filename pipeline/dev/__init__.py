"""Kafka and S3 servers for development, the demo and tests. Nothing that a user runs in production."""

__all__ = ["jars", "jvm_server", "kafka", "launch", "lock", "ports", "process", "s3", "servers"]
