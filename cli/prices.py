"""`[prices]` in slackwater.toml: what the store takes, for `slackwater status --cost`."""

import math
from pathlib import Path

from ..errors import Usage
from .humane import nearest

__all__ = ["check"]


def check(path: Path, table: object) -> None:
    """See that the file's `[prices]` can be understood.

    Raises:
        Usage: it cannot.
    """
    from ..store.versions.prices import Prices

    known = Prices.__struct_fields__
    if not isinstance(table, dict):
        raise Usage(f"{path}: prices must be a table", hint="write [prices] above them")
    for key, value in table.items():
        if key not in known:
            raise Usage(
                f"{path} sets prices.{key}, which is no price{nearest(key, known)}",
                hint=f"the prices are {', '.join(known)}",
            )
        if key == "currency":
            if not (isinstance(value, str) and value):
                raise Usage(f"{path}: prices.currency must be a string such as 'EUR', not {value!r}")
        elif not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise Usage(f"{path}: prices.{key} must be a number that is not negative, not {value!r}")
