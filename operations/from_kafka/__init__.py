"""Compacted topics, such as changelogs of Kafka Streams, as sources for `attach`."""
