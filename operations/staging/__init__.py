"""Clones of an app, trials of a changed program on past input, and blue/green promotion of an app over another.

A clone shares SSTs, or copies them, and has its own channels. A promotion is a transaction of two apps
(`snapshot.change.switch`): both are prepared, then one object records the decision. In the runners,
`pipeline.source.wake` makes both apps stop reading, and `pipeline.publish` waits for the decision.
"""
