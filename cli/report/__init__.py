"""What bisect found as one file to hand on: HTML that needs no script and no network, or Markdown for a pull request.

Pure functions from values to text: a verdict becomes a document (`contents`, `surroundings`), in which every value of
the user's is marked as one and hidden unless it is asked for (`masking`); the document becomes HTML or Markdown. Only
`files` writes. Not here: finding anything out (`snapshot.bisect`).
"""

__all__ = [
    "contents",
    "document",
    "drawing",
    "files",
    "html",
    "markdown",
    "masking",
    "style",
    "surroundings",
    "timeline",
]
