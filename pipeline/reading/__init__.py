"""A table at a moment as a batch source of Spark's: where its rows are, which a query needs, reading them in tasks."""
