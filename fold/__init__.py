"""What a version means: version N + 1 is made of version N and of records. Pure, given what it is handed.

A task, a replay, a reject, a migration and `init` ask here; none has rules of its own. No Spark, no Kafka, no clock, no
threads, no files of its own: what is stored it asks of the `LookUps` it is handed, and it calls the user's functions.
"""
