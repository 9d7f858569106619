"""Poison records: whose fault an error is, which records are to blame, and the batch without them.

Which records to try next is decided without Spark: `fold/failing.py` over `fold/culprit.py`.
"""
