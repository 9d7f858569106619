"""Versions of one stage: manifests, their codec and limits, keys, the commit by compare-and-swap, history.

Pure Python and JSON, so that reading a manifest needs no Arrow. Not here: rows, or several stages at one moment.
"""
