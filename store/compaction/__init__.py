"""Compaction: choosing SSTs to merge, merging them out of core, and applying the result to a manifest.

Not here: the schedule, which belongs to the runner (`pipeline.upkeep`) and the CLI (`operations.maintenance`).
"""
