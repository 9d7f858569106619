"""Clones of an app, trials of a release on its input, and blue/green promotion of one app over another.

A clone shares SSTs, or copies them, and has its own channels. A promotion follows a transaction with two parties
(`snapshot.change.switch`): both apps are prepared, then one object records the decision. A runner's part in a promotion
is in `pipeline.source.wake`, which holds the planners, and in `pipeline.publish`, which waits for the
decision.
"""
