"""Sinks: how committed rows leave an app, exactly once.

`core` decides what is published next and knows neither Kafka nor threads; `targets` has the two kinds of target;
`publishers` are the threads of a runner. `claimed` says what is refused of a stage's sinks before anything starts, and
what a claim makes of them. No batch waits for anything here.
"""
