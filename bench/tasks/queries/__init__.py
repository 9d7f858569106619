"""Benchmarks of verbs that read, adopt or follow Spark queries, of Spark's own state API, and of many stages."""
