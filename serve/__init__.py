"""HTTP server of a store root (`slackwater serve`). Any number of instances can run, and each can answer any request.

An instance has no state except the store. `declare` declares each route once, and derives argument checks and the
OpenAPI document from the declaration. Route functions are a few lines that call `client`: they contain no logic of
reads and decisions.
"""
