"""Causes of a bad commit that replays can prove, other than one bad record; one module per group of causes.

Each class of causes is tested by an assumption, for example that a record was missing, that another program ran, or
that no row was late. If the batch is good under the assumption, the assumption names the cause.
`snapshot/bisect/causes.py` declares the classes. `snapshot.bisect` itself finds the causes that need no replay.
"""
