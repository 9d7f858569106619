"""Keys that were forgotten: what became of the objects that held them, and the note while it is being done.

Not here: finding such objects, and rewriting them (`operations.erasure`).
"""
