"""Garbage collection: retention rules, reachable versions and the reasons for them, and deletion of everything else."""
