"""HTTP server of a store root (`slackwater serve`). Any number of instances can run, and each can answer any request.

An instance has no state besides the store. `declare` derives argument checks and the OpenAPI document from one
declaration of each route. Route functions are a few lines that call `client`, without logic of their own.
"""
