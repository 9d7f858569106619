"""Runs of a program in memory on chosen records, with the branches that they reach or the rows that they give."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
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
    """Result of a run, with the branches that it reached and its other effects."""

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
        ran = run_program(load_program(self.file, self.name, self.instrumented.compiled(reports)), records)
        return Observed(ran, self.instrumented.reached(reports), effects_of(ran))

    def run(self, records: Sequence[TopicRecord]) -> Ran:
        """Run the program as it is."""
        return run_program(load_program(self.file, self.name), records)


def load_program(file: Path, name: str, code: CodeType | None = None) -> App:
    from ...pipeline.run.program import load_app

    return load_app(str(file), name=name, code=code)


def run_program(app: App, records: Sequence[TopicRecord]) -> Ran:
    return run(app, by_topic(records), max_records=max_records(records))


def by_topic(records: Sequence[TopicRecord]) -> Mapping[str, list[Record]]:
    topics = dict[str, list[Record]]()
    for topic, record in records:
        topics.setdefault(topic, []).append(record)
    return topics


def max_records(records: Sequence[TopicRecord]) -> int:
    """Return the records of each topic in a batch: half of the most, so that state is read that was written before."""
    return max((len(own) + 1) // 2 for own in by_topic(records).values())
