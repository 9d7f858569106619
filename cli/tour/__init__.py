"""The recorded store of `slackwater tour`, and the commands that the tour runs.

`docs/record_tour.py` writes the archive. The commands themselves are in `cli.verbs`.
"""
