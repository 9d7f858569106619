"""What is behind a bad commit beside one record: one file for each class that takes a replay to be proved.

A class is asked by an assumption: without a record, with another program, with no row late. Where the batch is good
then, the assumption names the cause. `snapshot/bisect/causes.py` declares the classes; those that the store alone
tells are in `snapshot.bisect`.
"""
