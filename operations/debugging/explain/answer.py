"""Results of `why` and `impact`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from ....errors import NotFound
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.explained import Impact, MinimalRecords, ReachedCopy, RowExplanation
from ....snapshot.bisect.verdict import RecordLocation, SourceRecord
from ....snapshot.cut.moments import heads_of, stages_of
from ....snapshot.cut.stored import list_snapshots
from ....snapshot.diff.reading import versions_that_read
from ....state.records import topic_id_in
from ....store.sst.arrow_types import python_rows
from ....store.versions import apps, history
from ....store.versions.manifest import Manifest
from ..replay.program import LoadedProgram
from ..replay.record import read_message, with_place
from .impact import ImpactWalk
from .minimal import minimal_records
from .walk import RowWalk

Progress = Callable[[str], None]


def explain_row(
    program: LoadedProgram,
    newest: Manifest,
    key: pa.Table,
    *,
    minimal: bool = False,
    payloads: bool = False,
    max_batches: int = 0,
    progress: Progress = lambda _doing: None,
) -> RowExplanation:
    """Return the records that made the row of a key, as the row is at the version `newest` of its stage.

    `key` is one row of key columns, as returned by `parse_key`. With `minimal`, searches the smallest set of records
    that gives the row. With `payloads`, reads the source records' keys, values and headers. `max_batches` is the
    maximum number of batches to replay; 0 for no limit. If the replay of a version fails, the result has the error as
    the reason for unknown records. Raises `NotFound` if garbage collection removes a version meanwhile.
    """
    walk = RowWalk(program, max_batches, lambda manifest: progress(f"replaying {manifest.stage} v{manifest.version}"))
    walk.add_row(newest, key)
    described = [walked.described() for walked in walk.versions.values()]
    versions = tuple(sorted(described, key=lambda version: version.stage != newest.stage))
    row = versions[0].after if versions else None
    smallest: MinimalRecords | None = None
    unknown = ""
    if minimal and versions:
        progress("searching the smallest set of records")
        try:
            wrote = history.read(program.store, newest.app, newest.stage, versions[0].version)
            smallest = minimal_records(walk, wrote, key)
        except Exception as error:
            unknown = reason_of(error)
    sources = tuple(_sources(program, walk, payloads=payloads))
    key_values = python_rows(key)[0]
    return RowExplanation(
        newest.app, newest.stage, key_values, newest.version, row, versions, sources, smallest, unknown
    )


def _sources(program: LoadedProgram, walk: RowWalk, *, payloads: bool) -> Iterator[SourceRecord]:
    sources = {part.batch.address(number): (part, number) for part, number in walk.sources}
    for location in sorted(sources, key=lambda place: (place.topic, place.partition, place.offset)):
        part, number = sources[location]
        if payloads:
            topic_id = topic_id_in(part.batch.replay.after, location.topic)
            yield read_message(program.kafka, location, topic_id, program.patience_s)
        else:
            yield SourceRecord(with_place(program.kafka, location), part.batch.time_ms(number), None, None, ())


def trace_impact(
    program: LoadedProgram,
    record: RecordLocation,
    clones: Mapping[str, tuple[str, Mapping[str, int]]],
    *,
    max_batches: int = 0,
    progress: Progress = lambda _doing: None,
) -> Impact:
    """Return the rows, sent rows, snapshots and clones that a record reached.

    `clones` has, by name, the source and the cut of each direct or indirect clone of the app. Raises `NotFound` for a
    topic that no stage reads.
    """
    store, app = program.store, program.app.name
    heads = {stage: head for stage, head in heads_of(store, app, stages_of(store, app)).items() if not head.retired}
    walk = ImpactWalk(
        program,
        {stage: head for stage, head in heads.items() if stage in program.app.stages},
        max_batches,
        lambda manifest: progress(f"replaying {manifest.stage} v{manifest.version}"),
    )
    walk.run(record)
    record = with_place(program.kafka, record)
    copies = [*_snapshots(walk, app), *_clones(walk, app, record, clones)]
    return Impact(
        app,
        record,
        tuple(walk.readers),
        tuple(walk.not_taken),
        tuple(walk.rows.values()),
        tuple(walk.outputs.values()),
        tuple(copies),
        tuple(walk.unknown),
    )


def _snapshots(walk: ImpactWalk, app: str) -> Iterator[ReachedCopy]:
    for snapshot in list_snapshots(walk.program.store, app):
        if snapshot.kind != "clone":
            stages, in_flight = _reached_in(walk, app, snapshot.stages)
            if stages or in_flight:
                yield ReachedCopy("snapshot", snapshot.name, stages, in_flight)


def _clones(
    walk: ImpactWalk, app: str, record: RecordLocation, clones: Mapping[str, tuple[str, Mapping[str, int]]]
) -> Iterator[ReachedCopy]:
    whole = set[str]()
    waiting = dict(clones)
    while ready := [name for name, (source, _) in waiting.items() if source == app or source not in waiting]:
        for name in ready:
            source, cut = waiting.pop(name)
            stages, in_flight = tuple[str, ...](), tuple[str, ...]()
            if source in whole:
                # The first versions of a clone of a clone already have the rows.
                stages = tuple(f"{stage}@v{version}" for stage, version in cut.items())
            elif source == app:
                stages, in_flight = _reached_in(walk, app, cut)
            stages = stages or tuple(_read_by(walk, name, record))
            if stages or in_flight:
                whole.add(name)
                yield ReachedCopy("clone", name, stages, in_flight)


def _read_by(walk: ImpactWalk, clone: str, record: RecordLocation) -> Iterator[str]:
    """Yield the versions of a clone, committed after its creation, that read the record."""
    store = walk.program.store
    for head in heads_of(store, clone, stages_of(store, clone)).values() if apps.find_app(store, clone) else ():
        if any(source.topic == record.topic for source in head.inputs.values()):
            with suppress(NotFound):  # read before the clone was created, or in versions that gc has removed
                for version in versions_that_read(store, head, record.topic, record.partition, record.offset):
                    yield f"{head.stage}@v{version}"


def _reached_in(walk: ImpactWalk, app: str, cut: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the stages of a cut with rows that the record reached, and the channels with such rows in flight."""
    store, bases = walk.program.store, dict[str, Sequence[range]]()

    def has(stage: str, version: int) -> bool:
        if stage not in cut:
            return False
        if stage not in bases:
            bases[stage] = history.read(store, app, stage, cut[stage]).base_versions(of_rows=True)
        return any(version in versions for versions in bases[stage])

    stages = {
        row.stage: f"{row.stage}@v{cut[row.stage]}"
        for row in walk.rows.values()
        if has(row.stage, row.version) and not (row.until and has(row.stage, row.until))
    }
    in_flight = {
        output.output: None
        for output in walk.outputs.values()
        if output.kind == "channel" and has(output.stage, output.version)
        for reader in output.readers
        if not has(reader.partition("@v")[0], int(reader.partition("@v")[2]))
    }
    return tuple(stages.values()), tuple(in_flight)
