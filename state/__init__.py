"""Kinds of state, and one step of a table: compute version N + 1 from version N and a batch of records. Pure functions.

Tasks, replays, rejects, migrations and `init` all call this room. No Spark, no Kafka, no clock, no threads, no files:
stored rows come from the `TableLookUps` that the caller passes in, and users' functions are called here.
"""
