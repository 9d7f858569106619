"""Adoption of a stopped Spark query as a stage of a program, with the query's state and history.

`buffers`, `variables`, `mapping` and `grouped` map columns of the query's state to columns of the stage's table.
`adoption` commits a version for each batch and verifies the last one. `adopting`, `program_text` and `shadow` depend on
Spark, Kafka and the program.
"""
