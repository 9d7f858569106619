"""A query of Spark's that was stopped becomes a stage of a program: its state and history, as that stage keeps them.

Here is what becomes of the query's columns (`columns`, `buffers`, `mapping`, `grouped`), the versions that are made of
its batches (`adoption`), and whether they are right (`checksum`). Not here: Spark, Kafka, and what a program declares.
"""
