"""Kinds of state, and the computation of a table's next version from its current version and a batch.

Pure functions for tasks, replays, rejected records, migrations and `init`: no Spark, no Kafka, no clock, no threads, no
files. Stored rows come from the `TableLookUps` that the caller passes in. Users' functions are called here.
"""
