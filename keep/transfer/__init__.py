"""An app at a moment as a folder of plain Parquet that anybody opens, and a new app from such a folder.

`document` says what a folder holds, `parts` what its files are, `export` writes one, `imported` makes an app of it.
Not here: the new app's first versions, which are as a clone's (`keep.clone`).
"""
