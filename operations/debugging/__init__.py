"""Replays of past batches: search for the record or other cause behind a bad commit, and determinism checks.

`bisect --code` calls, in this order: `client/replays.py`, `causes/find.py` (which cause), `replay/record.py` (which
record), `replay/stage_replay.py` (one version), `pipeline/batch/rerun.py` (the user's function).
"""
