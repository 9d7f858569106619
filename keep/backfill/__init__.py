"""The past of columns that a migration added: what is to be read for them, and how it comes into stored rows.

What is read is computed by an app of its own, which `pipeline` runs. Not here: what a migration changes (`migrate`).
"""
