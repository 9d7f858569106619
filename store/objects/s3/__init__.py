"""The object store in S3: clients, credentials, encryption, transfers in parts.

The only place that imports boto3 and botocore. Not here: anything that a folder on a disk needs as well.
"""
