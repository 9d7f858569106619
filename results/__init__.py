"""What verbs and methods give, as one document model, and how it is shown: terminal, plain text, JSON, HTML, Markdown.

Pure functions from values to text. Not here: finding anything out (`moments`, `pipeline`), and writing to a terminal
(`cli`).
"""
