"""Runs of a program in memory on chosen records, with the reached branches or the resulting rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
    """Runs of a program's file. Each run starts with empty state, and makes two batches of more than one record."""

    file: Path
    name: str
    """Name of the app."""
    folder: Path
    """Folder for copies of the program, and for reports of reached branches."""
    instrumented: InstrumentedProgram = field(init=False)
    num_runs: int = 0

    def __post_init__(self) -> None:
        self.instrumented = instrument(self.file.read_bytes())

    def observe(self, records: Sequence[TopicRecord]) -> Observed:
        """Run the instrumented program. Raises the errors of `run`."""
        self.num_runs += 1
        place = Path(tempfile.mkdtemp(dir=self.folder))
        copy, reports = place / self.file.name, place / "reached"
        reports.mkdir()
        self.instrumented.write(copy, reports)
        ran = run_program(load_program(copy, self.name), records)
        return Observed(ran, self.instrumented.reached(reports), effects_of(ran))

    def run(self, records: Sequence[TopicRecord]) -> Ran:
        """Run the unchanged program."""
        return run_program(load_program(self.file, self.name), records)


def load_program(file: Path, name: str) -> App:
    from ...pipeline.run.program import load_app

    return load_app(str(file), name=name)


def run_program(app: App, records: Sequence[TopicRecord]) -> Ran:
    return run(app, by_topic(records), max_records=max_records(records))


def by_topic(records: Sequence[TopicRecord]) -> Mapping[str, list[Record]]:
    topics = dict[str, list[Record]]()
    for topic, record in records:
        topics.setdefault(topic, []).append(record)
    return topics


def max_records(records: Sequence[TopicRecord]) -> int:
    """Return the batch size: half of the largest topic, so that the second batch reads state of the first."""
    return max((len(own) + 1) // 2 for own in by_topic(records).values())
