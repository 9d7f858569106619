"""Snapshots: taking, pinning, moving and removing; capture of in-flight records; the audit log.

Kafka is accessed only through small Protocols, and Spark is not used.
"""

__all__ = ["audit_log", "capture", "snapshots", "taking"]
