"""Look-ups of rows by key at a moment: inline or in threads, with data shared by all answers about a table.

Modules on the path of a request for one key: `serve/reads.py` (route), `serve/service.py` (cached moment),
`serve/passing.py` (which instance), `look_ups.py`, `store/read/multi_get.py`. The search for a row, the choice of the
instance, and routes are in those other modules.
"""
