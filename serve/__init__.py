"""HTTP server over a store root (`slackwater serve`): each instance answers for each app, key and moment.

An instance holds no state that is not in the store. Routes are declared once (`declare`), from which argument checks
and the OpenAPI document are derived. Route functions are a few lines over `client`: no logic of reads or decisions
belongs here.
"""
