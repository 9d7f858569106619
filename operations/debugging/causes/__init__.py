"""Causes of a bad commit other than one bad record, as far as replays can prove them; one module per group of causes.

To test a cause, the batch is replayed without it, for example with the old program, or with a late row included. If the
batch is then good, the cause is proved. `snapshot/bisect/causes.py` declares the kinds of causes. `snapshot.bisect`
finds the causes that need no replay.
"""
