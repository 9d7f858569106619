"""Replays of past batches: functions that open the program and the batch, and find the cause of a change."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.extras import require_extras
from ..common.instants import format_with_age
from ..errors import NotFound, Refused, SlackwaterError, Usage
from ..operations.staging.listing import list_clones
from ..snapshot.bisect.causes import (
    NOT_REPLAYED,
    Cause,
    TracedCause,
    absence_cause,
    find_operation_cause,
    find_untouched_keys,
    guess_deploy_cause,
    unknown_cause,
)
from ..snapshot.bisect.explained import Impact, RowExplanation
from ..snapshot.bisect.queried_records import find_queried_records
from ..snapshot.bisect.verdict import Hop, RecordLocation, Verdict
from ..snapshot.bisect.written_records import find_written_records
from ..snapshot.cut.moments import heads_of, stages_of
from ..snapshot.query.columns import parse_key
from ..store.versions import forgotten, history
from ..store.versions.apps import read_app, replace_name_by_folder
from ..store.versions.manifest import Manifest
from ..store.versions.side_tables import find_owner
from .backends import Backends, split_stage_name
from .declared.questions import CheckOptions, ImpactOptions, WhyOptions
from .moment import Moment
from .show.shown import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from ..operations.debugging.replay.compare import SentRows
    from ..operations.debugging.replay.program import LoadedProgram
    from ..operations.debugging.replay.stage_replay import StageReplay

    OpenedBatch = tuple[StageReplay, Mapping[str, SentRows], pa.Table | None]

STARTING = "starting Spark for the replay"


ProgramFiles = Sequence[str | Path]
"""Paths of the program that ran, and optionally of the program that ran before a deploy."""


def explain_verdict(
    client: Backends,
    verdict: Verdict,
    codes: ProgramFiles | None,
    progress: Callable[[str], None] = lambda _doing: None,
) -> TracedCause:
    """Find the cause of a bisect's verdict, from the store or by replays with the programs in `codes`.

    An error of a replay is not raised, because the commit is already known; it becomes the reason why the cause is
    unknown. A note names missing requirements of a replay. If `codes` is None, no batch is replayed.
    """
    try:
        if (queried := find_queried_records(verdict)) is not None:
            return queried
        topics = client.channels_of(verdict.app)
        if (written := find_written_records(client.store, client.cache, topics, verdict)) is not None:
            return written
        cause = cause_without_replay(client, verdict)
        if cause.proved or verdict.candidates or codes is None:
            return TracedCause(cause)
        if lacks := _missing_for_replay(client, verdict, codes):
            return TracedCause(unknown_cause(lacks) if cause.kind == "unknown" else cause)
        _note_forgotten(client, (verdict.bad.stages[verdict.stage],))
        return _find_cause_traced(client, verdict, codes, progress)
    except Exception as error:
        # The commit is already found, and must be reported.
        why = "; ".join(filter(None, (error.message, error.hint))) if isinstance(error, SlackwaterError) else str(error)
        why = (why or type(error).__name__).partition("\n")[0]
        client.note(f"note: the commit was found, but the replay failed: {why}")
        return TracedCause(unknown_cause(why))


def cause_without_replay(client: Backends, verdict: Verdict) -> Cause:
    """Return the cause that manifests and rows suggest without a replay; it may be unproven.

    Raises `Corruption` and `Unavailable`.
    """
    store = client.store
    if verdict.candidates:
        return unknown_cause(f"the commit is not certain, so {NOT_REPLAYED}")
    if (done := find_operation_cause(store, verdict)) is not None:
        return done
    if (verdict_hop := find_untouched_keys(store, client.cache, verdict)) is not None:
        how = "; add --code to test by a replay if a record of another key is the cause"
        return absence_cause(
            store, verdict, verdict_hop, proved=False, suffix="" if _non_kafka_sources(verdict) else how
        )
    return guess_deploy_cause(store, verdict) or unknown_cause(NOT_REPLAYED)


def replay_programs(client: Backends, verdict: Verdict, codes: ProgramFiles) -> ProgramFiles:
    """Return the program files for replays: `codes`, or else the file in the settings, if any."""
    configured = client.settings.programs.get(verdict.app)
    return codes or ([configured] if configured is not None else [])


def _non_kafka_sources(verdict: Verdict) -> str:
    bad = verdict.bad.stages[verdict.stage]
    other_sources = bad.attached.others if bad.attached is not None else ()
    return "" if bad.inputs.keys() - other_sources else ", ".join(other_sources)


def _missing_for_replay(client: Backends, verdict: Verdict, codes: ProgramFiles) -> str:
    """Return the reason why a replay is impossible; empty if it is possible. Notes name the missing part."""
    if sources := _non_kafka_sources(verdict):
        client.note(f"note: not replayed: the query reads no Kafka topic ({sources}); look in its source")
        return f"the query reads no Kafka topic ({sources}), and only Kafka topics are replayed"
    attached, ran = verdict.bad.stages[verdict.stage].attached, verdict.bad.stages[verdict.stage].program
    if not codes:
        how = f"add --code {ran.path if ran else 'FILE'}, the program that ran"
        if attached is not None:
            how = "add --code FILE:FUNCTION, a function that turns the source's rows into the operator's input"
        client.note(f"note: to find the input record, {how}")
        return "nothing was replayed, because no program was given"
    if client.channels() is None:
        client.note("note: not replayed: no Kafka configured; add --kafka HOST:PORT")
        return "nothing was replayed, because no Kafka is configured"
    return ""


def _find_cause_traced(
    client: Backends, verdict: Verdict, codes: ProgramFiles, progress: Callable[[str], None]
) -> TracedCause:
    from ..pipeline.telemetry.spans import configured_tracing

    if (tracing := configured_tracing()) is None:
        return _find_cause_by_replay(client, verdict, codes, progress)
    with closing(tracing), tracing.bisect(verdict.app) as span:
        explanation = _find_cause_by_replay(client, verdict, codes, progress)
        message = explanation.named_record_path.source_record if explanation.named_record_path is not None else None
        record_trace = (message.headers, str(message.location)) if message is not None else ()
        span.set_first_bad(verdict.stage, verdict.bad_version, *record_trace)
        return explanation


def _find_cause_by_replay(
    client: Backends, verdict: Verdict, codes: ProgramFiles, progress: Callable[[str], None]
) -> TracedCause:
    def on_hop(hop: Hop) -> None:
        # Do not name the record yet, because it may be healthy.
        progress(f"{hop.stage} v{hop.version}: one of {hop.records:,} records, with {hop.replays:,} replays")

    require_extras("spark", "a replay")
    progress(STARTING)
    # Importing PySpark takes a second or two.
    if verdict.bad.stages[verdict.stage].attached is not None:
        from ..operations.debugging.causes.window import cause_in_window

        kafka = client.require_channels("to read the records of the window", verdict.app).kafka
        return cause_in_window(kafka, verdict, str(codes[0]))
    from ..operations.debugging.causes.find import find_cause
    from ..operations.debugging.replay.program import open_programs

    kafka = client.require_channels("to read the records to replay").kafka
    with open_programs(client.store, client.cache, kafka, verdict, codes) as (program, *earlier_programs):
        return find_cause(program, earlier_programs, verdict, verdict.predicate, on_hop)


def explain_row(
    client: Backends,
    moment: Moment,
    table: str,
    key: tuple[object, ...],
    code: str | Path | None,
    options: WhyOptions,
    progress: Callable[[str], None] = lambda _doing: None,
) -> RowExplanation:
    """Return the records that made a key's row at a moment; see `StoredApp.why`."""
    newest = moment.cut.stages.get(table)
    if newest is None or newest.table is None:
        declared = moment.table_declaration(table)  # raises for an unknown table
        stage = find_owner(table, moment.cut.stages)
        raise Refused(
            f"{table} is a side table of {stage}, and its rows ({len(declared.columns)} columns) cannot be traced",
            hint=f"give a row of {stage}; the key of a rejected record is already its location",
        )
    only = parse_key(table, newest.table, key)
    file = client.program_path(newest.app, code, "to replay the batches with", f"{_ran(newest)}, the program that ran")
    with open_program_file(client, newest.app, file, progress) as program:
        from ..operations.debugging.explain.answer import explain_row as explain

        _note_forgotten(client, (newest,))
        how = {"minimal": options["minimal"], "payloads": options["payloads"]}
        return explain(program, newest, only, **how, max_batches=options["limit"], progress=progress)


def trace_impact(
    client: Backends,
    app: str,
    record: str,
    code: str | Path | None,
    options: ImpactOptions,
    progress: Callable[[str], None] = lambda _doing: None,
) -> Impact:
    """Return everything that a record reached; see `StoredApp.impact`."""
    location = RecordLocation.parse(record)
    stages = heads_of(client.store, app, stages_of(client.store, app))
    topics = {source.topic: None for head in stages.values() for source in head.inputs.values()}
    if location.topic not in topics:
        raise NotFound(f"topic that {app!r} reads", location.topic, topics)
    file = client.program_path(app, code, "to replay the batches with", "FILE, the program that ran")
    clones = {clone.name: (clone.source, clone.cut) for clone in list_clones(client.store) if not clone.state}
    with open_program_file(client, app, file, progress) as program:
        from ..operations.debugging.explain.answer import trace_impact as trace

        _note_forgotten(client, stages.values())
        return trace(program, location, clones, max_batches=options["limit"], progress=progress)


def _ran(manifest: Manifest) -> str:
    return manifest.program.path if manifest.program is not None else "FILE"


def _note_forgotten(client: Backends, chosen: Iterable[Manifest]) -> None:
    for app, at in {manifest.app: manifest.forgotten for manifest in chosen}.items():
        index = forgotten.newest(client.store, app)
        if index.number > at:
            client.note(
                f"note: keys of {app} were forgotten since then, last {format_with_age(index.time_ms)}: a replay lacks "
                "their archived records, and a row that only the replay has may belong to a forgotten key"
            )


@contextmanager
def open_batch(client: Backends, ref: str, code: Path | None, key: tuple[object, ...]) -> "Iterator[OpenedBatch]":
    """Yield three values: the batch of a ref `app/stage@version`, the rows that it sent, and the selected key or None.

    Raises `Usage` if no program or no Kafka is configured, or if a key is given for a stage without a table; and the
    errors of `StoredApp.at` and `StageReplay.for_version`.
    """
    app, stage = split_stage_name(ref.partition("@")[0])
    after = Moment.from_ref(client, replace_name_by_folder(client.store, ref), "replayed").cut.stages[stage]
    if key and after.table is None:
        raise Usage(f"stage {stage!r} has no table, and so has no keys", hint="omit the key")
    only = parse_key(stage, after.table, key) if key and after.table is not None else None
    file = client.program_path(app, code, "to replay with", f"{_ran(after)}, the program that ran")
    with open_program_file(client, after.app, file) as program:
        from ..operations.debugging.replay.compare import read_sent_rows
        from ..operations.debugging.replay.stage_replay import StageReplay
        from ..pipeline.run.claim import program_of

        now, then = program_of(program.app), after.program
        if now is not None and then is not None and now.checksum != then.checksum:
            client.note(f"note: {file} differs from the program that ran then, {then}")
        _note_forgotten(client, (after,))
        batch = StageReplay.for_version(program, after)
        yield batch, read_sent_rows(batch) if only is None else {}, only


@contextmanager
def open_bundled_batch(bundle: Path, code: Path | None) -> "Iterator[OpenedBatch]":
    """Yield three values: the batch of a bundle file, the rows that it sent, and its keys.

    Raises the errors of `open_bundle`.
    """
    require_extras("spark", "a replay")
    from ..operations.debugging.replay.bundle import read
    from ..operations.debugging.replay.bundled import open_bundle

    with open_bundle(read(bundle), code) as opened:
        yield opened


def check_determinism(
    client: Backends,
    code: str | Path,
    app: str | None,
    options: CheckOptions,
    progress: Callable[[str], None] = lambda _doing: None,
) -> Result:
    """Check that a program is deterministic; see `StoredApp.check`. If `app` is None, the program names the app."""
    versions = options["versions"]
    if versions < 1:
        raise Usage(f"check: versions is {versions}; expected 1 or more")
    with open_program_file(client, app, code, progress) as program:
        from ..operations.debugging.check.check import check as check_versions
        from ..pipeline.spark.session import has_own_workers
        from .show.programs import check_result

        chosen: list[Manifest] = []
        for stage in program.app.select_stages(options["stages"]):
            head = history.head(client.store, program.app.name, stage.name)
            chosen += islice(
                (manifest for manifest in history.iter_backwards(client.store, head) if manifest.has_read)
                if head
                else (),
                versions,
            )
        if not chosen:
            read_app(client.store, program.app.name)  # raises if the app does not exist
            raise Refused(
                f"no version of {program.app.name} has read anything, so there is nothing to replay",
                hint=f"run it first: slackwater run {code} --app {program.app.name}",
            )

        def on_version(manifest: Manifest) -> None:
            progress(f"running {manifest.stage} v{manifest.version} again")

        _note_forgotten(client, chosen)
        outcomes = tuple(check_versions(program, chosen, on_version))
        if not has_own_workers(program.spark):
            client.note(
                "note: this Spark session was started elsewhere, so the clock of its Python workers is not controlled"
            )
        return check_result(str(code), program.app.name, outcomes, show_values=options["show_values"])


def open_program_file(
    client: Backends, app: str | None, code: str | Path, progress: Callable[[str], None] = lambda _doing: None
) -> "AbstractContextManager[LoadedProgram]":
    """Load the program of a file for replays. If `app` is None, the program names the app.

    Raises the errors of `load_app` and `open_program`.
    """
    require_extras("spark", "a replay")
    kafka = client.require_channels("to read the records to replay").kafka
    progress(STARTING)
    # Importing PySpark takes a second or two.
    from ..operations.debugging.replay.program import open_program
    from ..pipeline.run.program import load_app

    return open_program(load_app(str(code), name=app), client.store, client.cache, kafka)
