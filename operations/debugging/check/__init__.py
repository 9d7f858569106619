"""Determinism check: replay past versions in different arrangements, and compare the results.

The arrangements (`arrangements.py`) and the comparison (`differences.py`) need no Spark.
"""
