"""Kafka: its interface (`protocol`, `open`), implementations by librdkafka and in memory, encodings, groups, channels.

Only `librdkafka`, `clients` and `transactions` import confluent-kafka, apart from the servers for development.
"""
