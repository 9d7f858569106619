"""Running one batch of history again, whole or in part, on a Spark of this machine: nothing of the app is touched.

What to run next is decided without Spark: `state/failing.py`.
"""
