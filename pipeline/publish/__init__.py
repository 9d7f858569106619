"""Sinks: how committed rows leave an app, exactly once.

`core` decides what is published next and knows neither Kafka nor threads; `to_topic` and `to_function` are the two
kinds of target; `publisher` is the thread of one sink, `publishers` all of a runner. `claimed` says what is refused
of a stage's sinks before anything starts, and what a claim makes of them. No batch waits for anything here.
"""
