"""Renderers of pages and results: HTML for files and notebooks, and Markdown."""
