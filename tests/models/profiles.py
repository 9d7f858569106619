"""How thoroughly models are run: `SLACKWATER_PROFILE` is `default`, `ci` or `nightly`. See `conftest.py`."""

import os
from random import Random

from hypothesis import settings

PROFILE = os.environ.get("SLACKWATER_PROFILE", "default")

SEARCHES = PROFILE in ("ci", "nightly")
"""Whether it is for finding what nobody has found yet."""
SECONDS = 3600 if SEARCHES else 300
"""How long such a test may take."""

_USUAL = 100
"""What the numbers of `scaled` are said for: a profile in which a test that says nothing has so many examples."""


def scaled(examples: int, steps: int = 50, *, in_ci: int = 0) -> settings:
    """Settings of a test: so many examples in a profile of a hundred, in others as many more or fewer in proportion.

    A law for which that is not enough says with `in_ci` how many it has at least in the profiles that search.
    """
    wanted = examples * settings.default.max_examples // _USUAL
    least = in_ci if SEARCHES else 1
    return settings(max_examples=max(least, wanted), stateful_step_count=steps)


def crash_points(requests: int, least: int = 0) -> list[int]:
    """After how many of its requests somebody is killed: from `least` to `requests`, where all of them pass.

    Profiles that search get each of them, the others both ends and one between, always the same.
    """
    between = range(least + 1, requests)
    if not SEARCHES and len(between) > 1:
        return [least, Random(requests).choice(between), requests]
    return list(range(least, requests + 1))
