"""Poison records: attributes a batch's error to records, and computes the batch again without those records.

`state/failing.py` decides, without Spark, which records to try next.
"""
