"""Measurements of what a Spark task does beside its state: messages it decodes, where it runs; of verbs and exports."""
