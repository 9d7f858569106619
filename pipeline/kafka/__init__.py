"""Kafka access: the interface (`protocol`, `open`), implementations by librdkafka and in memory, encodings, channels.

Only `librdkafka` and `process_clients` import confluent-kafka, apart from the servers for development.
"""
