"""Access to Kafka: the interface, implementations with librdkafka and in memory, encodings, repartition topics.

Only `librdkafka` and `process_clients` import confluent-kafka, apart from the servers for development.
"""
