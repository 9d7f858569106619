"""Export of tables to Iceberg without a copy: Iceberg metadata names the SSTs, and pins keep them from deletion.

`store/read` decides which rows a version shows. This package has what Iceberg's format adds: schemas, position deletes,
manifests, table metadata and its commit. Only this package imports pyiceberg, from the extra `iceberg`.
"""
