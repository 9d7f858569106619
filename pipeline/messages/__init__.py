"""What messages say: Avro, Protobuf and JSON Schema in the wire format of Confluent's schema registry, as columns.

Whole Arrow arrays in, whole Arrow arrays out; `decode.py` makes a Spark column of it. Needs the extra `registry`.
"""
