"""Sinks: how committed rows leave an app, exactly once.

`core` decides what is published next and knows neither Kafka nor threads; `to_topic` and `to_function` are the two
kinds of target; `publisher` is the thread of one sink, `publishers` all of a runner. `claimed` says what a claim makes
of a stage's sinks, `check` what is refused before anything starts. Nothing here is waited for by a batch.
"""

__all__ = ["check", "claimed", "core", "publisher", "publishers", "to_function", "to_topic"]
