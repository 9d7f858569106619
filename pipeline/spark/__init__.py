"""The Spark session, its JVM and Python workers, task placement, plans, and errors of users' code."""
