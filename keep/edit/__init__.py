"""Changing rows of a table by hand: a statement, or rows from elsewhere, as a version of their own.

What an edit makes of rows is pure and stands in `fold.kinds.replaced`.
"""
