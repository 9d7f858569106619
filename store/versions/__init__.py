"""Versions of one stage: manifests, their JSON format and limits, object keys, commits, and reading of history.

Pure Python and JSON, so that reading a manifest does not load Arrow. Rows and cuts across stages are elsewhere.
"""
