"""Telemetry for external systems: spans to OpenTelemetry, lineage to OpenLineage, and fields of log lines.

Prometheus metrics are in `run.monitoring`. The clients are imported only if configured.
"""
