"""How thoroughly models are run: `SLACKWATER_PROFILE` is `default`, `ci` or `nightly`. See `conftest.py`."""

import os

from hypothesis import settings

PROFILE = os.environ.get("SLACKWATER_PROFILE", "default")

_USUAL = 100
"""Examples of a test that says nothing, in the profile `default`."""


def scaled(examples: int, steps: int) -> settings:
    """Settings of a stateful test: so many examples by default, and in the same proportion more in other profiles."""
    return settings(
        max_examples=max(1, examples * settings.default.max_examples // _USUAL),
        stateful_step_count=steps,
    )
