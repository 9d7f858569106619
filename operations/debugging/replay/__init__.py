"""Replays of one past batch, in whole or in part, on a local Spark; the app and its store are only read.

`state/failing.py` decides without Spark which subset of records to replay next.
"""
