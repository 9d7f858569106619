"""Functions and classes with which a program declares its app: stages, topics, sinks, options of tables."""
