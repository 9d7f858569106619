"""Kafka: clients, topics, records, messages and markers on the wire, consumer groups, transactions.

The only place that imports confluent-kafka, beside the servers for development.
"""

__all__ = [
    "channels",
    "clients",
    "consumer_groups",
    "markers",
    "messages",
    "patience",
    "records",
    "topics",
    "transactions",
]
