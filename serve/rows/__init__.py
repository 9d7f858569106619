"""Rows by key: what answers of a moment have in common, look-ups, and passing keys on to the instance that has them.

What may not live here: how a row is found (`store/read`), and routes.
"""
