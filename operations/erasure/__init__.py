"""Erasure of keys (`slackwater forget`): takes keys out of an app, its clones and replicas, and verifies the result.

How readers learn that an SST was replaced is in `store.versions.forgotten`.
"""
