"""Benchmarks of `slackwater serve`: look-ups with a full and an empty cache, effects on a job, and the web page."""
