"""Codecs between schema-registry messages (Avro, Protobuf, JSON Schema in Confluent's wire format) and columns.

All codecs convert whole Arrow arrays; `decode.py` provides the Spark column. Needs the extra `registry`.
"""
