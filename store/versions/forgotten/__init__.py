"""Forgotten keys: the index of rewritten objects, and the note of a forget in progress.

Not here: finding and rewriting the objects that have the keys (`operations.erasure`).
"""
