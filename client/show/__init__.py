"""Output of verbs and methods, as a document for terminals, text, JSON, HTML and Markdown.

Pure functions from values to text. They neither read state nor write to a terminal (`cli` does).
"""
