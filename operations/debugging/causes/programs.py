"""Loads the programs of several files, one of which ran the bad batch, in one Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ....pipeline.api.app import App
from ....pipeline.batch.schemas import shapes
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.run.claim import program_of
from ....pipeline.run.program import load_app
from ....snapshot.bisect.verdict import Verdict
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ..replay.program import LoadedProgram, open_program


@contextmanager
def open_programs(
    store: ObjectStore, cache: SstCache, kafka: Kafka, verdict: Verdict, files: Sequence[str | Path]
) -> Iterator[list[LoadedProgram]]:
    """Load these files as programs of the verdict's app; the program that ran the bad batch comes first.

    The checksum in the bad commit identifies that program; if none matches, the first file counts as the program.
    Raises as `load_app`, `open_program` and `shapes` do.
    """
    ran = verdict.bad.stages[verdict.stage].program
    apps = [load_app(str(file), name=verdict.app) for file in files]

    def is_another(app: App) -> bool:
        now = program_of(app)
        return ran is None or now is None or now.checksum != ran.checksum

    first, *other_apps = sorted(apps, key=is_another)
    with open_program(first, store, cache, kafka) as program:
        yield [program, *(replace(program, app=app, shapes=shapes(app, program.spark)) for app in other_apps)]
