"""Kinds of state, and one step of a table: version N + 1 from version N and records. Pure, given its inputs.

Tasks, replays, rejects, migrations and `init` all call this room. No Spark, no Kafka, no clock, no threads, no files:
stored rows come from the `LookUps` that the caller passes in, and users' functions are called here.
"""
