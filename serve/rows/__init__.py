"""Rows by key of a moment: what all answers about a table have in common, and look-ups, at once or in threads.

What may not live here: how a row is found (`store/read`), who has it (`passing`), and routes.
"""
