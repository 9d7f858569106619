"""Thoroughness of model tests: `SLACKWATER_PROFILE` is `default`, `ci` or `nightly`. See `conftest.py`."""

import os
from random import Random

from hypothesis import settings

PROFILE = os.environ.get("SLACKWATER_PROFILE", "default")

SEARCHES = PROFILE in ("ci", "nightly")
"""True for profiles that search for new failures."""
SECONDS = 3600 if SEARCHES else 300
"""Time limit of a model test."""

_USUAL = 100
"""Number of examples that a test has by default in the profile to which `scaled` refers."""


def scaled(examples: int, steps: int = 50, *, in_ci: int = 0) -> settings:
    """Return settings that scale the number of examples: `examples` in the profile with a hundred examples.

    `in_ci` is the minimum in the profiles `ci` and `nightly`.
    """
    wanted = examples * settings.default.max_examples // _USUAL
    least = in_ci if SEARCHES else 1
    return settings(max_examples=max(least, wanted), stateful_step_count=steps)


def crash_points(requests: int, least: int = 0) -> list[int]:
    """Return the numbers of requests after which to kill: from `least` to `requests`; at `requests` nothing is killed.

    The profiles `ci` and `nightly` get every point. The default profile gets both ends and a fixed point in between.
    """
    between = range(least + 1, requests)
    if not SEARCHES and len(between) > 1:
        return [least, Random(requests).choice(between), requests]
    return list(range(least, requests + 1))
