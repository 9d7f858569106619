"""State as Iceberg tables without a copy: metadata that points at SSTs, kept by pins for as long as it does.

What a version shows is decided below, in `store/read`; here lives what Iceberg's format wants of it: schemas, position
deletes, manifests, the table's metadata and its commit. pyiceberg is imported in this room and nowhere else; it comes
with the extra `iceberg`.
"""
