"""Sources beside Kafka, with the interface of a topic with one partition: folders of files, Delta and Iceberg tables.

A source is a list of files in a fixed order (`file_list`), which is stored and only grows. An offset counts rows in
this order. Each kind of source has a finder of new files (`folder`, `delta`, `iceberg`); all others are common.
"""
