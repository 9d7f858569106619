"""Runs an app: checks its program, claims its stages, starts, watches and stops their queries, serves metrics."""
