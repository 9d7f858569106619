"""Adoption of a stopped Spark query as a stage of a program, with the query's state and history.

`buffers`, `variables`, `mapping` and `grouped` map the query's columns to the stage's. `adoption` makes a version of
each batch and verifies the last one. `adopting`, `program_text` and `shadow` depend on Spark, Kafka and the program.
"""
