"""Erasure of keys (`slackwater forget`): removes keys from an app, its clones and replicas, and searches for keys.

Readers learn from `store.versions.forgotten` that an SST was replaced.
"""
