"""Taking an app back to an earlier moment of its own, or the offsets alone at which it reads on: a reset.

What it makes of each stage is pure and stands in `keep.migrate.migration`, which commits it as it commits a migration.
"""
