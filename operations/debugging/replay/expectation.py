"""Generator of a pytest file for a bundle: the committed rows as Python values, which the user corrects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from ....common.whole_file import atomic_file
from ....errors import Usage
from ....store.sst.arrow_types import python_rows
from .compare import Comparison
from .literals import MODULES, literal, with_canonical_nan

_MAX_EXPECTATIONS = 10
"""Maximum number of keys that a generated test lists, and of rows of each channel."""


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
    imports = "".join(f"import {name}\n" for name in MODULES if any(f"{name}." in line for line in lines))
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


def _relative(program: Path, test: Path) -> str:
    path = Path(os.path.relpath(program.resolve(), test.resolve().parent))
    return path.as_posix() if path.parts.count("..") < 4 else str(program.resolve())
