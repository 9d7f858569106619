"""Renderers of documents: HTML for report files and notebooks, and Markdown."""
