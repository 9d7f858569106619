"""Generator of a pytest file for a bundle: the committed rows as Python values, which the user corrects."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from ....common.whole_file import atomic_file
from ....errors import Usage
from ....store.sst.arrow_types import python_rows
from .compare import Comparison

_MAX_EXPECTATIONS = 10
"""Maximum number of keys that a generated test lists, and of rows of each channel."""
_MODULES = ("datetime", "decimal", "math")


def check_same_folder(path: Path, bundle: Path) -> None:
    """Raise `Usage` unless the test is a Python file in the folder of its bundle."""
    if path.suffix != ".py":
        raise Usage(f"a test is a Python file: expected a name that ends with .py, found {path}")
    if path.resolve().parent != bundle.resolve().parent:
        raise Usage(
            f"{path} and {bundle} lie in different folders", hint="put the test and its bundle in the same folder"
        )


def write_test(path: Path, bundle: Path, program: Path | None, comparison: Comparison) -> None:
    """Write a test that replays a bundle in the test's folder, and expects the committed rows.

    `check_same_folder` checks the folder. `program` is the file that the test runs; None for the program in the bundle.
    The test lists the keys that differ, or all written keys if none differ. Raises `Refused` if the file cannot be
    written.
    """
    file = None if program is None else _relative(program, path)
    with atomic_file(path, "name") as temporary:
        temporary.write_bytes(format_test(bundle.name, file, comparison).encode())


def format_test(bundle: str, program: str | None, comparison: Comparison) -> str:
    """Return the source of the test. `bundle` and `program` are paths relative to the test."""
    lines = list(_expectations(comparison))
    program_argument = "" if program is None else f", program=HERE / {program!r}"
    imports = "".join(f"import {name}\n" for name in _MODULES if any(f"{name}." in line for line in lines))
    name = re.sub(r"\W", "_", f"test_{comparison.stage}_v{comparison.version}".lower(), flags=re.ASCII)
    body = "\n    ".join([f"batch = replayed(HERE / {bundle!r}{program_argument})", *lines])
    return f'''\
"""{comparison.ref}: expects what was committed. Change the values to the correct ones."""

{imports}from pathlib import Path

from slackwater.testing import replayed

HERE = Path(__file__).parent


def {name}() -> None:
    {body}
'''


def with_canonical_nan(value: Any) -> Any:
    """Return a value with each NaN replaced by the object `math.nan`, so that rows with NaN compare equal.

    Python's containers compare elements by identity before equality, so two rows with the object `math.nan` are equal.
    """
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {name: with_canonical_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_canonical_nan, value))
    return value


def sorted_rows(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(map(with_canonical_nan, python_rows(rows)), key=repr)


def _expectations(comparison: Comparison) -> Iterator[str]:
    keys = comparison.different or comparison.keys
    for change in islice(keys or (), _MAX_EXPECTATIONS):
        key = ", ".join(map(literal, change.key.values()))
        assertion = "is None" if change.before is None else f"== {literal({**change.key, **change.before})}"
        yield f"assert batch.row({key}) {assertion}"
    if keys and len(keys) > _MAX_EXPECTATIONS:
        yield f"# Of {len(keys):,} keys, these are the first."
    for channel in comparison.channels if not keys else ():
        if channel.committed.rows is None:
            continue
        if channel.committed.rows.num_rows <= _MAX_EXPECTATIONS:
            yield f"assert batch.sent[{channel.name!r}] == ["
            yield from (f"    {literal(row)}," for row in sorted_rows(channel.committed.rows))
            yield "]"
            continue
        yield f"assert len(batch.sent[{channel.name!r}]) == {channel.committed.rows.num_rows}"
        for row in sorted_rows(channel.missing)[:_MAX_EXPECTATIONS]:
            yield f"assert {literal(row)} in batch.sent[{channel.name!r}]"


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


def _relative(program: Path, test: Path) -> str:
    path = Path(os.path.relpath(program.resolve(), test.resolve().parent))
    return path.as_posix() if path.parts.count("..") < 4 else str(program.resolve())
