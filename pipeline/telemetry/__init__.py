"""What is told to systems that watch many programs: spans to OpenTelemetry, lineage to OpenLineage.

Not here: Prometheus (`run.metrics`), and what a batch means. Nothing of it is imported where nothing is configured.
"""
