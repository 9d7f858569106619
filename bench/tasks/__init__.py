"""Benchmarks of a Spark task besides its state (decoding, placement), and of verbs and exports."""
