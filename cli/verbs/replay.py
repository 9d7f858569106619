"""Verbs that run past batches again on this machine and compare the results: replay, check; and learn-tests."""

from bdb import BdbQuit
from contextlib import ExitStack
from pathlib import Path
from typing import Unpack

import typer

from ...client.declared.questions import CheckOptions
from ...common.extras import require_extras
from ...errors import Refused, Usage
from ..options import APP, argument, flag, option, parse_key_words, program_option
from ..session import Session, verb

_ZIP = ".zip"
_LEFT_DEBUGGER = 130


@verb(
    "slackwater replay flights/carriers@v13 --code flights.py",
    "slackwater replay flights/carriers@v13 UA --code fixed.py",
    "slackwater replay flights/carriers@v13 --break",
    "slackwater replay flights/carriers@v13 UA --pytest test_carriers.py",
    "slackwater replay test_carriers.zip --code fixed.py",
    kafka=True,
)
def replay(
    session: Session,
    ref: str = argument("APP/STAGE@VERSION", "The batch, a version of a stage; or a .zip written by --bundle."),
    key: list[str] = argument("KEY", "Only this key of the stage's table, written as for get.", []),
    code: Path | None = program_option("The program to run.", "; for a bundle, the program in it"),
    stop: bool = flag("--break", "Call breakpoint() in the stage's function and in its state's function."),
    bundle: Path | None = option("FILE", "Write the batch to a .zip that can be replayed anywhere."),
    pytest: Path | None = option(
        "FILE", "Write a pytest test that expects the committed rows, with its bundle beside it as a .zip of that name."
    ),
) -> None:
    """Replay one past batch and compare the result with the original.

    Runs the stage's own function over the records and the state that the version read, on a local Spark. The app is
    not touched. Shows the keys and the sent rows that differ, and exits with 1 if any does.
    """
    require_extras("spark", "a replay")
    from ...client.replays import STARTING, open_batch, open_bundled_batch
    from ...client.show.programs import replay_result
    from ...operations.debugging.replay.compare import compare

    existing_bundle = Path(ref) if ref.endswith(_ZIP) else None
    if existing_bundle is not None and (bundle is not None or key):
        raise Usage(
            f"{existing_bundle} is a bundle, which takes neither KEY nor --bundle",
            hint="omit KEY and --bundle, or give a ref instead of the bundle, as APP/STAGE@VERSION",
        )
    written = _bundle_to_write(ref, bundle, pytest)
    with ExitStack() as until_done:
        with session.progress() as progress:
            progress(STARTING)
            opened = (
                open_bundled_batch(existing_bundle, code)
                if existing_bundle
                else open_batch(session.client, ref, code, parse_key_words(key))
            )
            batch, sent, only = until_done.enter_context(opened)
        # No progress from here on: a debugger may use the terminal.
        if stop:
            from ...operations.debugging.replay.program import insert_breakpoints

            # Only now, because the function already ran once before, to derive its columns.
            session.note(f"stopping in {' and '.join(insert_breakpoints(batch.stage))}")
        try:
            comparison = compare(batch, sent, only)
        except Refused as error:
            if isinstance(error.__cause__, BdbQuit):  # quitting the debugger ends the verb
                raise typer.Exit(_LEFT_DEBUGGER) from None
            raise
        if written is not None:
            from ...operations.debugging.replay.bundle import write
            from ...operations.debugging.replay.bundled import capture_bundle

            write(capture_bundle(batch, comparison, sent, only), written)
    if pytest is not None:
        from ...operations.debugging.replay.expectation import write_test

        # Without --code, the test of an existing bundle runs the program in the bundle.
        program = None if existing_bundle is not None and code is None else batch.program.app.file
        write_test(pytest, written or Path(ref), program, comparison)
    session.show(replay_result(comparison, written, pytest))


def _bundle_to_write(ref: str, bundle: Path | None, pytest: Path | None) -> Path | None:
    """Return the path of the bundle to write, by default next to the test; None without `bundle` and `pytest`.

    Raises `Usage` if the bundle does not end in `.zip`, and the errors of `check_same_folder` for the test's path.
    """
    written = pytest.with_suffix(_ZIP) if bundle is None and pytest is not None and not ref.endswith(_ZIP) else bundle
    if written is not None and written.suffix != _ZIP:
        raise Usage(f"a bundle is a zip: expected a name that ends with {_ZIP}, found {written}")
    if pytest is not None:
        from ...operations.debugging.replay.expectation import check_same_folder

        check_same_folder(pytest, written or Path(ref))
    return written


@verb(
    "slackwater check flights.py",
    "slackwater check flights.py --app flights-staging --stage carriers --versions 10",
    kafka=True,
)
def check(
    session: Session,
    file: Path = argument("PROGRAM", "Python file that declares the app."),
    app_name: str | None = option("NAME", "The app whose history is replayed. Default: the program's.", name="--app"),
    **options: Unpack[CheckOptions],
) -> None:
    from ...client.replays import check_determinism as check_program

    with session.progress() as progress:
        result = check_program(session.client, file, app_name, options, progress)
    session.show(result)


@verb(
    "slackwater learn-tests flights --code flights.py",
    "slackwater learn-tests flights --code flights.py --out tests --records 1000",
    name="learn-tests",
    kafka=True,
)
def learn_tests(
    session: Session,
    app_name: str = APP,
    code: Path | None = program_option("The program to test."),
    out: Path = option("FOLDER", "Folder of the test file.", Path("tests/learned")),
    records: int = option("N", "Records of each topic to try.", 200, min=1),
    show_values: bool = flag("--show-values", "Write values as they are, instead of pseudonyms."),
) -> None:
    """Write tests from the history, for each branch of a program.

    Runs the program in memory on records from several parts of the history, including rejected records. Keeps a few
    records that reach each outcome of each condition (of Python, of Arrow's masks, and of Spark's where and when), are
    rejected or late, or change a row again. The file test_APP.py has these records, masked, and the resulting rows;
    pytest runs it without Kafka. A repeated command overwrites the file. The app is not touched.
    """
    require_extras("spark", "learning tests")
    from ...testing.learn.learn import learn_tests as learn
    from ...testing.learn.shown import learned_result

    app = session.app(app_name)
    file = session.client.program_path(app.called, code, "to test")
    with session.progress() as progress:
        learned = learn(app, file, out, records=records, show_values=show_values, on_progress=progress)
    session.show(learned_result(learned))
