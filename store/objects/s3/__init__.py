"""The object store in S3: clients, credentials, encryption, transfers in parts.

The only place that imports boto3 and botocore. Not here: anything that a folder on a disk needs as well.
"""

__all__ = ["s3", "s3_access", "s3_client", "s3_encryption", "s3_session", "s3_settings", "s3_transfer"]
