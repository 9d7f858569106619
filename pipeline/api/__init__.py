"""Declarations of a user's program: an app, its stages and topics, options of tables. Values only, no Spark."""
