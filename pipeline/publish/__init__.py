"""Publishing of sinks: committed rows leave an app exactly once.

`core` decides which rows to publish next, without Kafka or threads. `targets` has the targets for topics and functions,
and `tables` the target for tables. `publishers` has a runner's threads. `sinks` checks sinks before a run starts, and
returns the sinks of a claim. Batches do not wait for publishing.
"""
