"""Take, pin, move and remove snapshots, capture in-flight records, and keep the audit log.

Kafka is accessed only through small Protocols, and Spark is not used.
"""

__all__ = ["audit_log", "capture", "snapshots", "taking"]
