"""The Spark session, its JVM and Python workers, where tasks go, what is sent to them, and whose error one was."""
