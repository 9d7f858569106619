"""Explanations by replays: the records that made a row (`why`), and the rows that a record reached (`impact`).

`walk` searches from a row upstream, `impact` from a record downstream. `minimal` searches the smallest set of records
that gives a row; for this search, `fold` computes rows in memory. `answer` composes the results for the client.
"""
