"""Compaction: what to merge (pure), merging it out of core, and putting the result in place.

Not here: when it runs. That is the runner's (`pipeline.upkeep`) or the verb's (`operations.maintenance`).
"""
