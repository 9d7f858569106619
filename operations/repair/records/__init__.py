"""Repair of the past of a few keys: removes or replaces records in a table and in all downstream tables.

`changes` has the changed input of one batch. `stage_fold` computes the repaired rows of one stage, and `bounds` has its
limits. `plan` goes through the stages. `corrections` has the records for sinks. `journal` stores the repairs of an app.
`commit` changes the tables, while `hold` stops the runners.
"""
