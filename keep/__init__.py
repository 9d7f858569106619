"""What changes or guards stored things beside batches: clone, init, maintain, migrate, backfill, gc, rejected, verify.

It uses `moments` and what is below that. Not here: Spark and Kafka, which come in through small Protocols
(`clone.first_versions.Channels`, `verify.captured.Rereader`), or what a batch means (`fold`).
"""
