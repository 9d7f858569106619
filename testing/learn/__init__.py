"""Tests that are generated from an app's history: a few historical records that reach each branch of its program.

`branches` makes a program report the outcomes of its conditions, `learn` chooses records by runs in memory, `masking`
hides their values, and `files` writes the tests.
"""
