"""Replays of past batches: the record that caused a change, other causes of a bad commit, and determinism checks."""
