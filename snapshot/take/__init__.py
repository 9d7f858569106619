"""Snapshots: take one of a running app, pin one after the fact, keep in-flight records, remove it.

Also the audit log of operations. Kafka is reached through small Protocols, and Spark not at all.
"""

__all__ = ["audit_log", "capture", "snapshots", "taking"]
