"""Snapshots: taking one of a running app, pinning one after the fact, keeping records in flight, removing it.

Here too: the audit log of such operations. Not here: Kafka and Spark; they come in through small Protocols.
"""

__all__ = ["audit_log", "capture", "remove", "snapshots", "taking", "waiting"]
