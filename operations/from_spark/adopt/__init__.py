"""A stopped Spark query that becomes a stage of a program: its state and history, as that stage stores them.

`columns`, `buffers`, `mapping` and `grouped` map the query's columns, `adoption` makes versions of its batches,
`checksum` proves them; `adopting`, `program_text` and `shadow` have the parts of Spark, Kafka and the program.
"""
