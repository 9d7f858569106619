"""What a user's program declares: an app, its stages and topics, a table's options. Values only, no Spark."""
