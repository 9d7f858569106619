"""Benchmarks of a Spark task, apart from its state (decoding, placement), and of verbs and exports."""
