"""Generator of a pytest file with learned tests: records as Python values, and the resulting rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...common.whole_file import atomic_file
from ...operations.debugging.replay.literals import MODULES, literal, with_canonical_nan
from .. import Ran, Record
from .branches import Branch
from .runs import TopicRecord, in_halves

_OF_REJECTED = ("topic", "offset", "error")
"""Columns of rejected records that are equal on every machine."""
_REJECTED = f"[({', '.join(f'row[{name!r}]' for name in _OF_REJECTED)}) for row in ran.rows({{}})]"
_TABLE, _SINK = "ran.rows({})", "sorted(((record.key, record.value) for record in ran.sent[{}]), key=repr)"
_WIDTH = 102
Rows = Mapping[str, list[object]]


@dataclass(frozen=True, slots=True)
class LearnedTest:
    """Records with their outcomes, and the resulting rows by table and by written topic."""

    records: tuple[TopicRecord, ...]
    branches: frozenset[Branch]
    effects: frozenset[str]
    expected: tuple[Rows, Rows]


def expected_rows(ran: Ran) -> tuple[Rows, Rows]:
    """Return the rows of all tables, and the records of all sinks."""
    rejects = {stage.rejects for stage in ran.declared.stages.values() if stage.rejects}
    tables = {table: list[object](map(with_canonical_nan, _rows(ran, table))) for table in ran}
    sent = {
        topic: sorted(((record.key, record.value) for record in records), key=repr)
        for topic, records in ran.sent.items()
        if topic not in rejects
    }
    return tables, {topic: [*records] for topic, records in sent.items()}


def _rows(ran: Ran, table: str) -> Iterator[object]:
    for row in ran.rows(table):
        yield tuple(row[name] for name in _OF_REJECTED) if table.endswith("_rejected") else row


def write_tests(path: Path, app: str, program: Path, tests: Sequence[LearnedTest], values: str) -> None:
    """Write the test file. `values` is a sentence about masked values.

    Raises `Refused` if the file cannot be written.
    """
    relative = Path(os.path.relpath(program, path.resolve().parent)).as_posix()
    with atomic_file(path, "--out") as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(format_tests(app, relative, tests, values).encode())


def format_tests(app: str, program: str, tests: Sequence[LearnedTest], values: str) -> str:
    """Return the source of the test file. `program` is the path relative to the file."""
    records = [*_distinct(tests)]
    names = {id(record): f"RECORD_{number}" for number, record in enumerate(records, 1)}
    constants = [f"{names[id(record)]} = {_record(record.record)}" for record in records]
    functions = [_function(number, test, names) for number, test in enumerate(tests, 1)]
    text = "\n\n\n".join(["\n".join(constants), *functions])
    imports = "".join(f"import {name}\n" for name in MODULES if f"{name}." in text)
    return f'''\
"""Tests learned from the history of an app."""

{_comment(f"`slackwater learn-tests {app}` writes this file again: do not edit it.")}
{_comment(values)}

{imports}from pathlib import Path

from slackwater.testing import Record, load, run

APP = load(Path(__file__).parent / {program!r})
{text}
'''


def _distinct(tests: Sequence[LearnedTest]) -> Iterator[TopicRecord]:
    # A record has a list of headers, so records are told apart by identity.
    seen = set[int]()
    for test in tests:
        for record in test.records:
            if id(record) not in seen:
                seen.add(id(record))
                yield record


def _record(record: Record) -> str:
    given = {"key": record.key, "headers": list(record.headers or ()), "time_ms": record.time_ms}
    more = "".join(f", {name}={literal(value)}" for name, value in given.items() if value not in (None, []))
    return f"Record({literal(record.value)}{more})"


def _function(number: int, test: LearnedTest, names: Mapping[int, str]) -> str:
    lines = list[str]()
    for half in in_halves(test.records):
        topics = ", ".join(
            f"{literal(topic)}: [{', '.join(names[id(record)] for record in own)}]" for topic, own in half.items()
        )
        lines.append(f"ran = run(APP, {{{topics}}}{', after=ran' if lines else ''})")
    tables, sent = test.expected
    for what, rows_of in ((_TABLE, tables), (_SINK, sent)):
        for name, rows in rows_of.items():
            is_rejected = what == _TABLE and name.endswith("_rejected")
            lines += _assertion((_REJECTED if is_rejected else what).format(literal(name)), rows)
    outcomes = [*map(str, sorted(test.branches)), *sorted(test.effects)]
    comments = "\n    ".join(_comment(outcome)[:_WIDTH] for outcome in outcomes) or "# no branch"
    body = "\n    ".join(lines)
    return f"def test_{number}() -> None:\n    {comments}\n    {body}"


def _comment(text: str) -> str:
    # A line break would end the comment.
    return "# " + re.sub(r"\s+", " ", text)


def _assertion(what: str, rows: Sequence[object]) -> Iterator[str]:
    if len(rows) <= 1:
        yield f"assert {what} == {literal(list(rows))}"
        return
    yield f"assert {what} == ["
    yield from (f"    {literal(row)}," for row in rows)
    yield "]"
