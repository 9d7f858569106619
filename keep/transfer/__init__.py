"""An app at a moment as a folder of plain Parquet that anybody opens.

`document` says what a folder holds, `export` writes one. Not here: an app in another store, which is a replica
(`keep.replicate`, `keep.recover`).
"""
