"""A test file for a bundle: what the version committed stands in it, as plain Python values, to be put right."""

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

from ....common.whole_file import whole_file
from ....errors import Usage
from ....store.sst.arrow_types import python_rows
from .compare import Comparison

_MOST = 10
"""Keys, and rows of a channel, that stand in it."""
_MODULES = ("datetime", "decimal", "math")


def check_beside(path: Path, bundle: Path) -> None:
    """Raise `Usage` unless a test is a Python file, and lies in one folder with its bundle."""
    if path.suffix != ".py":
        raise Usage(f"a test is a Python file: expected a name that ends with .py, found {path}")
    if path.resolve().parent != bundle.resolve().parent:
        raise Usage(f"{path} and {bundle} lie in different folders", hint="a test finds its bundle beside it")


def write_test(path: Path, bundle: Path, program: Path | None, found: Comparison) -> None:
    """Write a test that replays a bundle, which lies beside it (`check_beside`), and expects what was committed.

    `program` is the file that the test will run; None for the one in the bundle. The keys that differ are expected, or,
    where none does, all that were written. Raises `Refused` where it cannot be written.
    """
    file = None if program is None else _relative(program, path)
    with whole_file(path, "name") as temporary:
        temporary.write_bytes(text_of_test(bundle.name, file, found).encode())


def text_of_test(bundle: str, program: str | None, found: Comparison) -> str:
    """The source of the test. The paths are relative to it."""
    lines = list(_expectations(found))
    ran = "" if program is None else f", program=HERE / {program!r}"
    imports = "".join(f"import {name}\n" for name in _MODULES if any(f"{name}." in line for line in lines))
    name = re.sub(r"\W", "_", f"test_{found.stage}_v{found.version}".lower(), flags=re.ASCII)
    body = "\n    ".join([f"batch = replayed(HERE / {bundle!r}{ran})", *lines])
    return f'''\
"""{found.ref}: what is expected is what was committed. Make it what should have been."""

{imports}from pathlib import Path

from slackwater.testing import replayed

HERE = Path(__file__).parent


def {name}() -> None:
    {body}
'''


def comparable(value: Any) -> Any:
    """A value as tests compare it: each NaN in it is `math.nan`, which is equal to itself within a row."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(comparable, value))
    return value


def sorted_rows(rows: pa.Table) -> list[dict[str, object]]:
    """The rows as tests compare them, in an order that depends on nothing else."""
    return sorted(map(comparable, python_rows(rows)), key=repr)


def _expectations(found: Comparison) -> Iterator[str]:
    keys = found.different or found.keys
    for change in islice(keys or (), _MOST):
        key = ", ".join(map(literal, change.key.values()))
        is_it = "is None" if change.before is None else f"== {literal({**change.key, **change.before})}"
        yield f"assert batch.row({key}) {is_it}"
    if keys and len(keys) > _MOST:
        yield f"# Of {len(keys):,} keys, these are the first."
    for channel in found.channels if not keys else ():
        if channel.committed.rows is None:
            continue
        if channel.committed.rows.num_rows <= _MOST:
            yield f"assert batch.sent[{channel.name!r}] == ["
            yield from (f"    {literal(row)}," for row in sorted_rows(channel.committed.rows))
            yield "]"
            continue
        yield f"assert len(batch.sent[{channel.name!r}]) == {channel.committed.rows.num_rows}"
        for row in sorted_rows(channel.missing)[:_MOST]:
            yield f"assert {literal(row)} in batch.sent[{channel.name!r}]"


def literal(value: object) -> str:
    """A Python expression for a value of a row, with `datetime`, `decimal` and `math` imported."""
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
        return f"{{{', '.join(f'{literal(key)}: {literal(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Iterable):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def _relative(program: Path, test: Path) -> str:
    """The program's path from the test's folder, where it is below the folder above; else as it is."""
    path = Path(os.path.relpath(program.resolve(), test.resolve().parent))
    return path.as_posix() if path.parts.count("..") < 4 else str(program.resolve())
