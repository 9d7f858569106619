"""Clones of an app, trials of a release on its input, and blue/green promotion of one app over another.

A clone shares SSTs, or copies them, and has its own channels. A promotion follows a transaction with two parties
(`snapshot.change.switch`): both apps are prepared, then one object records the decision. The part of a runner in a
promotion is elsewhere (`pipeline.source.wake` holds the planners, `pipeline.publish` waits for the decision).
"""
