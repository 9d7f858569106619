"""What a version means: version N + 1 is made of version N and of records. Pure over Arrow tables and values.

A task, a replay, a reject, a migration and `init` ask here; none has rules of its own. No Spark, no Kafka, no clock, no
threads, no files.
"""
