"""A test file for a bundle: what the version committed stands in it, as plain Python values, to be put right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import Usage
from ...store.sst.arrow_types import python_rows
from ...whole_file import whole_file
from .compare import Comparison

_MOST = 10
"""Keys, and rows of a channel, that stand in it."""
_PLAIN = (bool, int, str, bytes, type(None))
_MODULES = ("datetime", "decimal", "math")


def check_beside(path: Path, bundle: Path) -> None:
    """Raise `Usage` unless a test and its bundle lie in one folder."""
    if path.resolve().parent != bundle.resolve().parent:
        raise Usage(f"{path} and {bundle} lie in different folders", hint="a test finds its bundle beside it")


def write_test(path: Path, bundle: Path, program: Path | None, found: Comparison) -> None:
    """Write a test that replays a bundle, which lies beside it (`check_beside`), and expects what was committed.

    Args:
        path: The test's file.
        bundle: The bundle's.
        program: The program's, which the test will run; None for the one in the bundle.
        found: What the replay gave: the keys that differ are expected, or, where none does, all that were written.

    Raises:
        Refused: It cannot be written.
    """
    file = None if program is None else _relative(program, path)
    text = text_of_test(bundle.name, file, found)
    with whole_file(path, "name") as temporary:
        temporary.write_bytes(text.encode())


def text_of_test(bundle: str, program: str | None, found: Comparison) -> str:
    """The source of the test. The paths are relative to it."""
    lines = list(_expectations(found))
    ran = "" if program is None else f", program=HERE / {program!r}"
    imports = [f"import {name}" for name in _MODULES if any(f"{name}." in line for line in lines)]
    name = re.sub(r"\W", "_", f"test_{found.stage}_v{found.version}".lower(), flags=re.ASCII)
    head = [f'"""{found.ref}: what is expected is what was committed. Make it what should have been."""', ""]
    return "\n".join(
        [
            *head,
            *imports,
            "from pathlib import Path",
            "",
            "from slackwater.testing import replayed",
            "",
            "HERE = Path(__file__).parent",
            "",
            "",
            f"def {name}() -> None:",
            f"    batch = replayed(HERE / {bundle!r}{ran})",
            *(f"    {line}" for line in lines),
            "",
        ]
    )


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
        yield from _assertion(f"batch.row({key})", None if change.before is None else {**change.key, **change.before})
    if keys and len(keys) > _MOST:
        yield f"# Of {len(keys):,} keys, these are the first."
    for channel in found.channels if not keys else ():
        if channel.committed.rows is None:
            continue
        if channel.committed.rows.num_rows <= _MOST:
            yield from _assertion(f"batch.sent[{channel.name!r}]", sorted_rows(channel.committed.rows))
            continue
        yield f"assert len(batch.sent[{channel.name!r}]) == {channel.committed.rows.num_rows}"
        for row in sorted_rows(channel.missing)[:_MOST]:
            yield f"assert {literal(row)} in batch.sent[{channel.name!r}]"


def _assertion(what: str, value: object) -> Iterator[str]:
    if value is None:
        yield f"assert {what} is None"
    elif isinstance(value, list):
        yield f"assert {what} == ["
        yield from (f"    {literal(each)}," for each in value)
        yield "]"
    else:
        yield f"assert {what} == {literal(value)}"


def literal(value: object) -> str:
    """A Python expression for a value of a row, with `datetime`, `decimal` and `math` imported."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "math.nan" if math.isnan(value) else f"{_sign(value)}math.inf"
    if isinstance(value, Decimal):
        return f'decimal.Decimal("{value}")'
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else ", tzinfo=datetime.UTC"
        fields = _numbers((*value.timetuple()[:6], value.microsecond), 3)
        return f"datetime.datetime({fields}{zone})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Iterable):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def _numbers(fields: Sequence[int], least: int) -> str:
    """The fields without the zeros at their end."""
    count = max([least, *(at + 1 for at, number in enumerate(fields) if number)])
    return ", ".join(map(str, fields[:count]))


def _sign(value: float) -> str:
    return "-" if value < 0 else ""


def _relative(program: Path, test: Path) -> str:
    """The program's path from the test's folder, where it is below the folder above; else as it is."""
    file, folder = program.resolve(), test.resolve().parent
    for up, parent in enumerate([folder, *folder.parents][:4]):
        if file.is_relative_to(parent):
            return "/".join([*[".."] * up, *file.relative_to(parent).parts])
    return str(file)
