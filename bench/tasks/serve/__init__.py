"""Benchmarks of `slackwater serve`: look-ups with a warm and an empty cache, effects on a job, and the web page."""
