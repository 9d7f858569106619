"""Poison records: attributes a batch's error to records, and computes the batch again without those records.

Path of a bad record: `pipeline/batch/job.py` (the batch fails), `rejecter.py` (`rescue`), `blame.py` (record or
environment), `state/failing.py` (which records to try next), `table.py` (the table of rejected records). A retry:
`snapshot/change/stages.py` (the request), `pipeline/run/supervisor.py`, `rejecter.py` (`retry`).
"""
