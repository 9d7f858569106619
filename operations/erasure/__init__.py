"""Forgetting keys: taking them out of all that an app, its clones and replicas store, and proving that they are gone.

Not here: how readers learn that another SST took the place of one (`store.versions.forgotten`).
"""
