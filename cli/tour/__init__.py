"""The recorded store of `slackwater tour`, and the commands that the tour types.

`docs/record_tour.py` writes the archive. Not here: what the commands do.
"""
