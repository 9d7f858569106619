"""Telemetry for external systems: spans to OpenTelemetry, lineage to OpenLineage.

Prometheus metrics are in `run.metrics`. The clients are imported only if configured.
"""
