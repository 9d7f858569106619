"""Health of an instance: its metrics for Prometheus, and whether its store answers."""
