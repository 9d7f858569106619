"""Renderers of documents: HTML for report files and notebooks, Markdown, and the picture of a search."""
