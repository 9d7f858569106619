"""Poison records: attribution of a batch's error to records, and a retry of the batch without those records.

`state/failing.py` decides, without Spark, which records to try next.
"""
