"""Snapshots: take one of a running app, pin a cut after the fact, keep in-flight records, remove snapshots.

Also the audit log of operations. Kafka is accessed only through small Protocols, and Spark is not used.
"""

__all__ = ["audit_log", "capture", "snapshots", "taking"]
