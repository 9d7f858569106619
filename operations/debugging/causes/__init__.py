"""Causes of a bad commit that a replay can prove, other than one bad record; one file for each group of causes.

Each class is tested by an assumption: without a record, with another program, with no late rows. If the batch is good
under the assumption, the assumption names the cause. `snapshot/bisect/causes.py` declares the classes; those that the
store alone can prove are in `snapshot.bisect`.
"""
