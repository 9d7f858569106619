"""HTTP server of a store root (`slackwater serve`), with any number of instances that can answer any request.

An instance keeps no state outside of the store. `declare` declares each route once, and derives argument checks and
the OpenAPI document from the declaration. Route functions are a few lines that call `client`: logic of reads and
decisions does not belong here.
"""
