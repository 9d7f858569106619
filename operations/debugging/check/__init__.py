"""Determinism check: replay past versions in different arrangements of their records, and compare the results.

The arrangements (`arrangements.py`) and the comparison (`outcomes.py`) start no Spark job.
"""
