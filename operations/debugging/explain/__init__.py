"""Explanations by replays: the records that made a row (`why`), and what a record reached (`impact`).

`walk` goes from a row upstream, `impact` from a record downstream; `minimal` finds the smallest set of records that
gives a row, with `fold`; `answer` composes the results that the client shows.
"""
