"""Comparison of a table with external rows, and search for the reason why a record is not in a table.

`compare` joins both sides once. Only differing keys are examined further: `parting` reads their histories together,
`key_records` searches the topics for their records, and `fate` follows a record through the stages. In names, `ours` is
the table of the app, and `theirs` the external rows.
"""
