"""A program over the app that is stored: what it declares, which Spark knows, and where it begins to read.

A changed one is migrated to, and the past of what it added is computed; another's stage gets rows from elsewhere as its
first version. What becomes of the stored stages is decided without Spark in `keep/migrate/`.
"""
