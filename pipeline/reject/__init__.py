"""Rejection of bad records: finds the records that make a batch fail, and computes the batch without these records.

A bad record passes through these modules: `pipeline/batch/job.py` (the batch fails), `rejecter.py` (`rescue`),
`blame.py` (is the record or the environment the cause?), `state/failing.py` (which records to try next), `table.py`
(the table of rejected records). A retry: `snapshot/change/stages.py` (the request), `pipeline/run/supervisor.py`,
`rejecter.py` (`retry`).
"""
