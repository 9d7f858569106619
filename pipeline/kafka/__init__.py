"""Kafka: the seam (`protocol`, `open`), by librdkafka and in memory; messages on the wire, groups, channels.

`librdkafka`, `clients` and `transactions` import confluent-kafka, and nothing else does, beside the servers for
development.
"""
