"""Health of a server instance: its metrics for Prometheus, and whether its store answers."""
