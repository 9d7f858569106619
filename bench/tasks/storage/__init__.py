"""Benchmarks of storage: input archive, replicas, Iceberg exports, erasure, manifests, and as-of joins."""
