"""Comparison of a table with external rows, and reasons why records are not in a table: library calls and output."""
