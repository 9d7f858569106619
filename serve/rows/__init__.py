"""Rows by key of a moment: data that all answers about a table share, and look-ups inline or in threads.

Path of one key: `serve/reads.py` (route), `serve/service.py` (cached moment), `serve/passing.py` (which instance),
`look_ups.py`, `store/read/multi_get.py`. How a row is found, which instance answers, and routes do not belong here.
"""
