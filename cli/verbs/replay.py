"""`slackwater replay`: run one batch of history again, here, and compare."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...errors import Refused, Usage
from .. import options
from ..replaying import needed_program
from ..session import Session, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...pipeline.replay.compare import Sent
    from ...pipeline.replay.stage_replay import StageReplay

    _Opened = tuple[StageReplay, Mapping[str, Sent], pa.Table | None]

_ZIP = ".zip"
_LEFT_DEBUGGER = 130


@verb(
    "slackwater replay flights/carriers@v13 --code flights.py",
    "slackwater replay flights/carriers@v13 --code fixed.py --key UA",
    "slackwater replay flights/carriers@v13 --break",
    "slackwater replay flights/carriers@v13 --key UA --pytest test_carriers.py",
    "slackwater replay test_carriers.zip --code fixed.py",
    kafka=True,
)
def replay(
    session: Session,
    ref: str = options.argument(
        "APP/STAGE@VERSION", "The batch: a version of a stage; or the .zip that --bundle wrote."
    ),
    code: Path | None = options.option(
        "FILE", "The program to run. Default: [programs] of slackwater.toml; for a bundle, the one in it."
    ),
    key: list[str] = options.option(
        "VALUE", "Only this key of the stage's table; once for each key column. Written as in `get`.", []
    ),
    stop: bool = options.flag("--break", "Stop in the stage's function, and in that of its state: breakpoint()."),
    bundle: Path | None = options.option("FILE", "Write the batch to a .zip that can be replayed anywhere."),
    pytest: Path | None = options.option(
        "FILE", "Write a test that expects what was committed; its bundle lies beside it, as FILE.zip."
    ),
) -> None:
    """Run one batch of history again, here, and compare it with what was committed.

    The stage's own function gets the records that the version read, and its state the rows that it was merged into, on
    a Spark of this machine; nothing of the app is touched. Shown are the keys, and the rows sent, that come out
    different. Exits with 1 when any does.
    """
    from ...pipeline.replay.compare import compare
    from ...results.programs import replayed

    given = Path(ref) if ref.endswith(_ZIP) else None
    written = _written_to(given, key, bundle, pytest)
    if pytest is not None:
        from ...pipeline.replay.expectation import check_beside

        check_beside(pytest, written or Path(ref))
    with ExitStack() as until_done:
        with session.output.progress() as progress:
            progress("starting Spark for the replay")
            opened = _bundled(given, code) if given is not None else _of_history(session, ref, code, key)
            batch, sent, only = until_done.enter_context(opened)
        # Nothing is drawn from here on: a debugger may have the terminal.
        if stop:
            _stop_in(session, batch)
        with _debugger():
            found = compare(batch, sent, only)
        if written is not None:
            from ...pipeline.replay import zipped
            from ...pipeline.replay.bundled import capture

            zipped.write(capture(batch, found, sent, only), written)
    if pytest is not None:
        from ...pipeline.replay.expectation import write_test

        # Without --code, a test of a bundle that was there runs the program in it.
        program = None if given is not None and code is None else batch.program.app.file
        write_test(pytest, written or Path(ref), program, found)
    session.show(replayed(found, written, pytest))


def _written_to(given: Path | None, key: list[str], bundle: Path | None, pytest: Path | None) -> Path | None:
    """Where a bundle is to be written; None for nowhere. Raises `Usage`."""
    if given is not None:
        if bundle is not None or key:
            raise Usage(f"{given} is a bundle already: it has the keys it has", hint="give a ref, as APP/STAGE@VERSION")
        return None
    written = bundle or (pytest.with_suffix(_ZIP) if pytest is not None else None)
    if written is not None and written.suffix != _ZIP:
        raise Usage(f"a bundle is a zip: expected a name that ends with {_ZIP}, found {written}")
    return written


@contextmanager
def _bundled(given: Path, code: Path | None) -> "Iterator[_Opened]":
    """The batch of a bundle, what it sent, and the keys that it is about."""
    from ...pipeline.replay.bundled import open_bundle
    from ...pipeline.replay.zipped import read

    with open_bundle(read(given), code) as (batch, sent):
        yield batch, sent, batch.only


@contextmanager
def _of_history(session: Session, ref: str, code: Path | None, key: list[str]) -> "Iterator[_Opened]":
    """The batch that a ref names, what it sent, and the key that is asked for."""
    from ...snapshot.query.columns import parse_key

    app, stage = options.names_of_stage(ref.partition("@")[0])
    cut, _ = session.cut_around(ref, "replayed")
    after, only = cut.stages[stage], None
    if key:
        if after.table is None:
            raise Usage(f"stage {stage!r} keeps no table, and so has no keys", hint="leave --key out")
        only = parse_key(stage, after.table, options.key_values(key))
    ran = after.program.path if after.program is not None else "FILE"
    file = needed_program(session, app, code, "to replay with", f"{ran}, the program that ran")
    kafka = session.settings.open_kafka()
    # Spark's Python side takes a second or two.
    from ...pipeline.claim.claim import program_of
    from ...pipeline.replay.compare import sent_rows
    from ...pipeline.replay.program import open_program
    from ...pipeline.replay.stage_replay import StageReplay
    from ...pipeline.run.program import load_app

    declared = load_app(file, name=app)
    now, then = program_of(declared), after.program
    if now is not None and then is not None and now.checksum != then.checksum:
        session.note(f"note: {file} is not, byte for byte, the program that ran then, {then}")
    with (
        closing(session.settings.open_cache()) as cache,
        open_program(declared, session.store, cache, kafka) as program,
    ):
        batch = StageReplay.of(program, after)
        yield batch, sent_rows(batch) if only is None else {}, only


def _stop_in(session: Session, batch: "StageReplay") -> None:
    from ...pipeline.replay.breakpoints import stop_in

    # Not before: its function ran once already, to see what columns it gives.
    session.note(f"stopping in {' and '.join(stop_in(batch.stage))}")


@contextmanager
def _debugger() -> Iterator[None]:
    """Whoever leaves the debugger leaves the verb."""
    from bdb import BdbQuit

    try:
        yield
    except Refused as error:
        if isinstance(error.__cause__, BdbQuit):
            raise typer.Exit(_LEFT_DEBUGGER) from None
        raise
