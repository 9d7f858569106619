"""HTTP server over a store root: every instance can answer for every key at every moment.

An instance holds no state that is not in the store. Routes are declared once (`declare`), from which argument checks
and the OpenAPI document are derived. Route functions are a few lines over `client`: no logic of reads or decisions
belongs here.
"""
