"""Versions of one stage: manifests, their codec and limits, object keys, the commit by compare-and-swap, history.

Pure Python and JSON, so that reading a manifest does not load Arrow. Not here: rows, or cuts across stages.
"""
