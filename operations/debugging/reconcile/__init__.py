"""Comparison of a table with somebody else's numbers, and why a record is not in a table.

`compare` joins both sides once. Only keys that differ are looked at further: `parting` reads their histories side by
side, `key_records` searches the topics for their records, and `fate` follows a record through the stages.
"""
