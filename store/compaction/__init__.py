"""Compaction: choosing SSTs to merge, merging them out of core, and applying the result to a manifest.

The schedule of compactions is elsewhere: in the runner (`pipeline.upkeep`) and in the CLI (`operations.maintenance`).
"""
