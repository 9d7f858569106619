"""Causes of a bad commit other than a single record, for the classes that need a replay as proof.

Each class is tested by an assumption: without a record, with another program, with no late rows. If the batch is good
under the assumption, the assumption names the cause. `snapshot/bisect/causes.py` declares the classes; those that the
store alone can prove are in `snapshot.bisect`.
"""
