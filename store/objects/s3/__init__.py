"""The object store in S3: clients, credentials, encryption, multipart transfers.

Only this package imports boto3 and botocore. Not here: code that a folder on a disk needs as well.
"""
