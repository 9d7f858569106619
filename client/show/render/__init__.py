"""A page as a file, and a result in a notebook: HTML and Markdown."""
