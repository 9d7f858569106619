"""HTTP over a store root: any process answers any key at any moment. A few lines a route, over `client`.

What an instance keeps it can lose: the store has all. Routes are declared once (`declare`), and what is made of that,
the checks and the OpenAPI document, is made nowhere else. What may not live here: how something is read or decided.
"""
