"""Batches of history that are run again: with which program, and the record behind a commit or a change."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.instants import when
from ..errors import Refused, SlackwaterError, Usage
from ..snapshot.bisect.absences import absence, untouched
from ..snapshot.bisect.causes import Behind, Cause, unknown
from ..snapshot.bisect.deploys import guess
from ..snapshot.bisect.operations import operation_of
from ..snapshot.bisect.verdict import Guilty, Hop, Verdict
from ..snapshot.diff.key_history import RowChange, RowHistory
from ..snapshot.query.columns import parse_key
from ..store.versions import history
from ..store.versions.apps import in_folder, read_app
from ..store.versions.forgotten import index as forgotten
from ..store.versions.manifest import Manifest
from .backends import Backends, names_of_stage
from .declared.questions import CheckOptions
from .moment import Moment
from .show.shown import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from ..operations.debugging.replay.compare import SentRows
    from ..operations.debugging.replay.program import LoadedProgram
    from ..operations.debugging.replay.stage_replay import StageReplay

    Opened = tuple[StageReplay, Mapping[str, SentRows], pa.Table | None]

STARTING = "starting Spark for the replay"


Codes = Sequence[str | Path]
"""Files of programs: the one that ran, and perhaps one that ran before it."""


def cause_behind(
    client: Backends,
    verdict: Verdict,
    codes: Codes | None,
    progress: Callable[[str], None] = lambda _doing: None,
) -> Behind:
    """What is behind a verdict: what the store alone tells, and else replays with the programs of these files.

    Nothing that a replay raises gets out of here: the commit that is found is not lost. It is the cause's reason. With
    no file, and for what cannot be replayed here, a note says what to add; with None, nothing is to be replayed.
    """
    try:
        cause = cause_of_store(client, verdict)
        if cause.proved or verdict.candidates or codes is None:
            return Behind(cause)
        if lacks := _lacks(client, verdict, codes):
            return Behind(unknown(lacks) if cause.kind == "unknown" else cause)
        _note_forgotten(client, (verdict.bad.stages[verdict.stage],))
        progress(STARTING)
        return _traced(client, verdict, codes, progress)
    except Exception as error:
        # What is found already is not lost.
        why = "; ".join(filter(None, (error.message, error.hint))) if isinstance(error, SlackwaterError) else str(error)
        why = (why or type(error).__name__).partition("\n")[0]
        client.note(f"note: the commit is found, but nothing is replayed: {why}")
        return Behind(unknown(why))


def cause_of_store(client: Backends, verdict: Verdict) -> Cause:
    """What manifests and rows tell without a replay: as a guess, what is not proved so.

    Raises `Corruption` and `Unavailable`.
    """
    store = client.store
    if verdict.candidates:
        return unknown("the commit is not certain, so nothing was replayed")
    if (done := operation_of(store, verdict)) is not None:
        return done
    if (of := untouched(store, client.cache, verdict)) is not None:
        how = "; a replay (--code) tells whether one record of another key is at fault"
        return absence(store, verdict, of, proved=False, how="" if _sources(verdict) else how)
    return guess(store, verdict) or unknown("nothing was replayed")


def programs_of(client: Backends, verdict: Verdict, codes: Codes) -> Codes:
    """The files to replay with: those that were given, else that of the settings."""
    known = client.settings.programs.get(verdict.app)
    return codes or ([known] if known is not None else [])


def _sources(verdict: Verdict) -> str:
    """The sources of a query that reads no Kafka topic, whose records nobody can read again; else empty."""
    bad = verdict.bad.stages[verdict.stage]
    others = bad.attached.others if bad.attached is not None else ()
    return "" if bad.inputs.keys() - others else ", ".join(others)


def _lacks(client: Backends, verdict: Verdict, codes: Codes) -> str:
    """Why nothing can be replayed, after a note that says what to add; empty where it can."""
    if sources := _sources(verdict):
        client.note(f"note: nothing is replayed, as the query reads no Kafka topic ({sources}): look in its source")
        return f"the query reads no Kafka topic ({sources}), and only those are replayed"
    attached, ran = verdict.bad.stages[verdict.stage].attached, verdict.bad.stages[verdict.stage].program
    if not codes:
        how = f"a replay tells: add --code {ran.path if ran else 'FILE'}, the program that ran"
        if attached is not None:
            how = "its window tells: add --code FILE:FUNCTION, of the source's rows those before the operator"
        client.note(f"note: which input record it was, {how}")
        return "nothing was replayed, as nothing says which program ran"
    if client.channels() is None:
        client.note("note: nothing is replayed, as nothing says where Kafka is: add --kafka HOST:PORT")
        return "nothing was replayed, as nothing says where Kafka is"
    return ""


def _traced(client: Backends, verdict: Verdict, codes: Codes, progress: Callable[[str], None]) -> Behind:
    """The cause by replays. Where OpenTelemetry is configured, a span of it has a link to the record's trace."""
    from ..pipeline.telemetry.spans import tracing_of

    if (tracing := tracing_of()) is None:
        return _replayed(client, verdict, codes, progress)
    with closing(tracing), tracing.bisect(verdict.app) as span:
        found = _replayed(client, verdict, codes, progress)
        message = found.guilty.message if found.guilty is not None else None
        known = (message.headers, str(message.address)) if message is not None else ()
        span.found(verdict.stage, verdict.bad_version, *known)
        return found


def _replayed(client: Backends, verdict: Verdict, codes: Codes, progress: Callable[[str], None]) -> Behind:
    def on_hop(hop: Hop) -> None:
        # Only a cause names a record: this one may be healthy.
        progress(f"{hop.stage} v{hop.version}: one of {hop.records:,} records, with {hop.replays:,} replays")

    # Spark's Python side takes a second or two.
    if verdict.bad.stages[verdict.stage].attached is not None:
        from ..operations.debugging.causes.window import cause_in_window

        kafka = client.known_channels("which have the records of the window", verdict.app).kafka
        return cause_in_window(kafka, verdict, str(codes[0]))
    from ..operations.debugging.causes.find import find_cause
    from ..operations.debugging.causes.programs import open_programs

    kafka = client.known_channels("which have the records to replay").kafka
    with open_programs(client.store, client.cache, kafka, verdict, codes) as (program, *others):
        return find_cause(program, others, verdict, verdict.predicate, on_hop)


def records_behind(
    client: Backends, found: RowHistory, code: Path | None, progress: Callable[[str], None]
) -> tuple[Guilty | None, ...]:
    """The record behind each change of a key; None for a change that no batch made, or nobody knows which."""
    file = client.program_of(found.app, code, "to replay the batches with (--why)", "FILE, the program that ran")
    progress(STARTING)
    with _opened(client, found.app, file) as program:
        from ..operations.debugging.replay.record import why

        def record_of(change: RowChange) -> Guilty | None:
            if not change.by_batch:
                return None
            progress(f"replaying {change.stage} v{change.version}")
            return why(program, change.stage, change.version, found.key)

        return tuple(map(record_of, found.changes))


def _note_forgotten(client: Backends, chosen: Iterable[Manifest]) -> None:
    """Tell that keys were forgotten since versions that are to be replayed."""
    for app, at in {each.app: each.forgotten for each in chosen}.items():
        index = forgotten.newest(client.store, app)
        if index.number > at:
            client.note(
                f"note: keys of {app} were forgotten since, the last ones {when(index.time_ms)}: records of theirs "
                "that only the input archive had are not replayed, and rows that only the replay has may be theirs"
            )


@contextmanager
def batch_of(client: Backends, ref: str, code: Path | None, key: tuple[object, ...]) -> "Iterator[Opened]":
    """The batch that a ref `app/stage@version` names, what it sent, and the key that is asked for, if any.

    Raises:
        Usage: nothing says which program it is to be replayed with, or where Kafka is; or a stage without a table is
            asked for a key. Others as `StoredApp.at` and `StageReplay.of`.
    """
    app, stage = names_of_stage(ref.partition("@")[0])
    after = Moment.around(client, in_folder(client.store, ref), "replayed").cut.stages[stage]
    if key and after.table is None:
        raise Usage(f"stage {stage!r} keeps no table, and so has no keys", hint="leave the key away")
    only = parse_key(stage, after.table, key) if key and after.table is not None else None
    ran = after.program.path if after.program is not None else "FILE"
    file = client.program_of(app, code, "to replay with", f"{ran}, the program that ran")
    with _opened(client, after.app, file) as program:
        from ..operations.debugging.replay.compare import sent_rows
        from ..operations.debugging.replay.stage_replay import StageReplay
        from ..pipeline.run.claim import program_of

        now, then = program_of(program.app), after.program
        if now is not None and then is not None and now.checksum != then.checksum:
            client.note(f"note: {file} is not, byte for byte, the program that ran then, {then}")
        _note_forgotten(client, (after,))
        batch = StageReplay.of(program, after)
        yield batch, sent_rows(batch) if only is None else {}, only


@contextmanager
def batch_in(bundle: Path, code: Path | None) -> "Iterator[Opened]":
    """The batch of a bundle, what it sent, and the keys that it is about. Raises as `open_bundle`."""
    from ..operations.debugging.replay.bundle import read
    from ..operations.debugging.replay.bundled import open_bundle

    with open_bundle(read(bundle), code) as opened:
        yield opened


def check(
    client: Backends,
    code: str | Path,
    app: str | None,
    options: CheckOptions,
    progress: Callable[[str], None] = lambda _doing: None,
) -> Result:
    """What `StoredApp.check` does, for an app of this name; None for that which the program declares."""
    versions = options["versions"]
    if versions < 1:
        raise Usage(f"check: versions is {versions}; expected 1 or more")
    progress(STARTING)
    with _opened(client, app, code) as program:
        from ..operations.debugging.check.check import check as check_versions
        from ..pipeline.spark.session import has_own_workers
        from .show.programs import checked

        chosen: list[Manifest] = []
        for stage in program.app.select(options["stages"]):
            head = history.head(client.store, program.app.name, stage.name)
            chosen += islice(
                (each for each in history.backwards(client.store, head) if each.has_read) if head else (), versions
            )
        if not chosen:
            read_app(client.store, program.app.name)  # says so when the app is what is missing
            raise Refused(
                f"no version of {program.app.name} has read anything, so there is nothing to run again",
                hint=f"let it run first: slackwater run {code} --app {program.app.name}",
            )

        def on_version(manifest: Manifest) -> None:
            progress(f"running {manifest.stage} v{manifest.version} again")

        _note_forgotten(client, chosen)
        found = tuple(check_versions(program, chosen, on_version))
        if not has_own_workers(program.spark):
            client.note(
                "note: this Spark session was not started here: in its Python workers the clock is the machine's"
            )
        return checked(str(code), program.app.name, found, show_values=options["show_values"])


def _opened(client: Backends, app: str | None, code: str | Path) -> "AbstractContextManager[LoadedProgram]":
    """The program of a file as this app (None: as its own), with Spark to replay it.

    Raises as `load_app` and `open_program`.
    """
    kafka = client.known_channels("which have the records to replay").kafka
    # Spark's Python side takes a second or two.
    from ..operations.debugging.replay.program import open_program
    from ..pipeline.run.program import load_app

    return open_program(load_app(str(code), name=app), client.store, client.cache, kafka)
