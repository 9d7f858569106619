"""Forgetting keys: taking them out of all that an app and its clones store, and looking whether anything has them.

Not here: how readers learn that an SST became another one (`store.versions.forgotten`).
"""
