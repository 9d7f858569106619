"""Erasure of keys (`slackwater forget`): removes keys from an app, its clones and replicas, and searches for keys.

How readers learn that an SST was replaced is in `store.versions.forgotten`.
"""
