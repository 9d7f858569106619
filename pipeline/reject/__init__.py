"""Poison records: whose fault an error is, which records are to blame, and the batch without them.

Which records to try next is decided without Spark: `state/failing.py` over `state/culprit.py`.
"""
