"""Taking an app back to an earlier moment of its own.

What it makes of each stage is pure and stands in `keep.migrate.migration`, which commits it as it commits a migration.
"""
