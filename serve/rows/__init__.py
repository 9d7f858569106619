"""Rows by key of a moment: data that all answers about a table share, and look-ups inline or in threads.

How a row is found (`store/read`), which instance answers (`passing`), and routes do not belong here.
"""
