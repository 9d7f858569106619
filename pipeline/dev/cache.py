"""Folder of programs that slackwater downloads for its users."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache for programs: `slackwater` in XDG_CACHE_HOME, else in ~/.cache.

    SLACKWATER_CACHE is not used here: it names the folder of SSTs, possibly on another disk for each app.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "slackwater"
