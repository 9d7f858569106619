"""Replays of one past batch, whole or in part, on a local Spark. The app and its store are only read.

`state/failing.py` decides without Spark which subset to replay next.
"""
