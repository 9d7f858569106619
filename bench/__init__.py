"""Benchmarks against peers: each figure is a ratio to a peer that ran on the same machine in the same run.

`python -m bench` (or `make bench`) prints one table and writes `bench/out/results.json`.
"""
