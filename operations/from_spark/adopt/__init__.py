"""Adoption of a stopped Spark query as a stage of a program: its state and history, as that stage stores them.

`columns`, `buffers`, `mapping` and `grouped` map the query's columns, `adoption` makes versions of its batches, and
`checksum` verifies the versions. `adopting`, `program_text` and `shadow` depend on Spark, Kafka and the program.
"""
