"""Beside a stage's batches: merges of SSTs, fetches of those needed soon, waiting for merges, and what it all costs."""
