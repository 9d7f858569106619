"""Results of verbs and methods as one document model, shown on terminals, as text, JSON, HTML and Markdown.

Pure functions from values to text. Not here: reading state, and writing to a terminal (`cli`).
"""
