"""State as Iceberg tables without a copy: Iceberg metadata that names SSTs, which pins protect from deletion.

`store/read` decides which rows a version shows. This package has what Iceberg's format adds: schemas, position deletes,
manifests, table metadata and its commit. Only this package imports pyiceberg, from the extra `iceberg`.
"""
