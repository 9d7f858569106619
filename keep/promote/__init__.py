"""One app over another: both stand at the same offsets, then the name, the sinks and the right to write go over.

The order is that of a transaction with two parties (`switch`): both are prepared, one note decides. Not here: what a
runner does of it (`pipeline.source.wake` holds the planners, `pipeline.publish` waits for the decision), or how names
are looked up (`store.versions.apps`).
"""
