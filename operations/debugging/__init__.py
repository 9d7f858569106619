"""Replays of past batches, to find the record or other cause behind a bad commit, and to check determinism.

`bisect --code` calls, in this order: `client/replays.py`, `causes/find.py` (which cause), `replay/record.py` (which
record), `replay/stage_replay.py` (one version), `pipeline/batch/rerun.py` (the user's function).
"""
