"""Runs of a program in memory on chosen records, with the reached branches or the resulting rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from ...common.validation import find_program_file
from .. import Ran, Record, run
from .branches import Branch, InstrumentedProgram, instrument
from .effects import effects_of

if TYPE_CHECKING:
    from ...pipeline.api.app import App


class TopicRecord(NamedTuple):
    """Record of a topic that an app reads."""

    topic: str
    """The topic's name in the program."""
    record: Record


@dataclass(frozen=True, slots=True)
class Observed:
    """Result of a run, with the reached branches and other effects."""

    ran: Ran
    branches: frozenset[Branch]
    effects: frozenset[str]

    @property
    def outcomes(self) -> frozenset[Branch | str]:
        return self.branches | self.effects


@dataclass
class ProgramRuns:
    """Runs of a program's file. Each run starts with empty state."""

    file: Path
    name: str
    """Name of the app."""
    folder: Path
    """Folder for reports of reached branches."""
    instrumented: InstrumentedProgram = field(init=False)
    num_runs: int = 0

    def __post_init__(self) -> None:
        from ...pipeline.spark.user_errors import as_user_error

        with as_user_error("the program"):
            self.instrumented = instrument(find_program_file(self.file).read_bytes(), self.file)

    def observe(self, records: Sequence[TopicRecord]) -> Observed:
        """Run the instrumented program. Raises the errors of `run`."""
        self.num_runs += 1
        reports = Path(tempfile.mkdtemp(dir=self.folder))
        results = run_program(load_program(self.file, self.name, self.instrumented.compiled(reports)), records)
        return Observed(results[-1], self.instrumented.reached(reports), effects_of(results))

    def run(self, records: Sequence[TopicRecord]) -> Ran:
        """Run the program as it is."""
        return run_program(load_program(self.file, self.name), records)[-1]


def load_program(file: Path, name: str, code: CodeType | None = None) -> App:
    from ...pipeline.run.program import load_app

    return load_app(str(file), name=name, code=code)


def run_program(app: App, records: Sequence[TopicRecord]) -> tuple[Ran, ...]:
    """Run an app on each of `in_halves`, one after the other; return all results."""
    results = list[Ran]()
    for half in in_halves(records):
        topics = {topic: [record.record for record in own] for topic, own in half.items()}
        results.append(run(app, topics, after=results[-1] if results else None))
    return tuple(results)


def in_halves(records: Sequence[TopicRecord]) -> Iterator[Mapping[str, Sequence[TopicRecord]]]:
    """Yield the first half of each topic's records, and the others if there are any: they meet state of the first.

    Between the two, all stages have read everything. Batches of one run would depend on the speed of each stage.
    """
    topics = dict[str, list[TopicRecord]]()
    for record in records:
        topics.setdefault(record.topic, []).append(record)
    middle = {topic: (len(own) + 1) // 2 for topic, own in topics.items()}
    yield {topic: own[: middle[topic]] for topic, own in topics.items()}
    if rest := {topic: own[middle[topic] :] for topic, own in topics.items() if len(own) > 1}:
        yield rest
