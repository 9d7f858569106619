"""Output of verbs and methods, as a document for terminals, text, JSON, HTML and Markdown.

Pure functions from values to text. Not here: reading state, and writing to a terminal (`cli`).
"""
