"""Batches run again: replays, the record behind a change, causes of a bad commit, whether a program is a function."""
