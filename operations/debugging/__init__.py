"""Replays of past batches: search for the record or other cause behind a bad commit, and determinism checks."""
