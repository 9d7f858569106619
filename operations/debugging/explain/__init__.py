"""Explanations by replays: the records that made a row (`why`), and the rows that a record reached (`impact`).

`walk` goes from a row upstream, `impact` from a record downstream. `minimal` finds the smallest set of records that
gives a row; `fold` computes rows in memory for it. `answer` composes the results that the client shows.
"""
