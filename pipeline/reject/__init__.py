"""Poison records: attribution of a batch's error to records, and a retry of the batch without those records.

Deciding which records to try next needs no Spark: `state/failing.py`.
"""
