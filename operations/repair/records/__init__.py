"""Repair of the past of a few keys: records are taken out of what a table, and all tables downstream, were made from.

`changes` has the changed input of one batch; `stage_fold` computes the rows of one stage's keys without the records,
within `bounds`; `plan` walks the stages; `corrections` has the records for sinks; `journal` keeps the repairs of an
app; `commit` changes the tables, while `hold` keeps runners at rest.
"""
