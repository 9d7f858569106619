"""Values of rows as Python expressions, for generated tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

MODULES = ("datetime", "decimal", "math")
"""Modules that a generated test imports for these expressions."""


def with_canonical_nan(value: Any) -> Any:
    """Return a value with each NaN replaced by the object `math.nan`, so that rows with NaN compare equal.

    Python's containers compare elements by identity first, so two rows with the object `math.nan` are equal.
    """
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {name: with_canonical_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_canonical_nan, value))
    return value


def literal(value: object) -> str:
    """Return a Python expression for a value of a row; the test imports `datetime`, `decimal` and `math`."""
    if isinstance(value, str | bytes):
        return repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
    if isinstance(value, Decimal):
        return f'decimal.Decimal("{value}")'
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else ", tzinfo=datetime.UTC"
        fields = [*value.timetuple()[:6], value.microsecond]
        while len(fields) > 3 and not fields[-1]:
            fields.pop()
        return f"datetime.datetime({', '.join(map(str, fields))}{zone})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Iterable):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)
