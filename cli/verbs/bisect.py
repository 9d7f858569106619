"""`slackwater bisect`: find the commit, and the input record, that made the state wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import typer

from ...client.declared.questions import WrongOptions
from ...client.show import formats
from ...client.show.shown import Result
from ...errors import Usage
from ..options import APP, Repeated, argument, flag, option, programs_option
from ..session import Session, group, verb

if TYPE_CHECKING:
    from ...client.searches import Reports
    from ...snapshot.bisect.session import SearchSession
    from ...snapshot.bisect.verdict import Answer, Evaluation

bisect_group = group()

_REFS = argument(
    "REF...", "Moments to judge; `beginning` is before the first commit. Default: the moment shown last.", None
)


@verb(
    'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
    'slackwater bisect flights/carriers --where "worst > 3000" --good flights@before-deploy',
    'slackwater bisect flights/carriers --check "min(flights) >= 0"',
    'slackwater bisect flights --run "python check.py"      # SLACKWATER_DB is the moment, 0 good, 125 skip, else bad',
    'slackwater bisect flights --where "SELECT tail FROM aircraft WHERE flights < 0" --out keys.parquet',
    "slackwater bisect start flights      # judge each moment yourself: good, bad, skip",
    parent=bisect_group,
    is_group_command=True,
    kafka=True,
    declared_first=True,
)
def bisect(
    session: Session,
    app_name: str = argument("APP[/TABLE]", "The app, or the table that the condition is about."),
    python: str = option(
        "FILE:FUNCTION",
        "Python function; gets a DuckDB connection with the tables, and returns True if the moment is good.",
        "",
    ),
    run: str = option(
        "CMD",
        "Shell command; reads $SLACKWATER_DB. Exit codes as for `git bisect run`: 0 good, 125 skip, "
        "other codes up to 127 bad.",
        "",
    ),
    first: bool = flag("--first", "Find the first change from good to bad if there are several."),
    last: bool = flag("--last", "Find the last change from good to bad."),
    out: Path | None = option("FILE", "Write all keys that turned bad to a .parquet, .csv or .json file."),
    every: bool = flag("--all", "List every bad record of the batch, in the app's order; --out writes them."),
    code: Repeated = programs_option(
        "The program that ran, to find the input record; also the program before a deploy."
    ),
    no_replay: bool = flag("--no-replay", "Stop at the commit; do not search for the input record."),
    report: Path | None = option("FILE", "Write a report as one .html file, with values hidden."),
    md: Path | None = option("FILE", "Write the report as Markdown, for a pull request."),
    show_values: bool = flag("--show-values", "Show keys, rows, payloads and literals in the reports."),
    **options: Unpack[WrongOptions],
) -> None:
    """Find the first bad commit, and the input record behind it.

    Give a predicate: a query, a condition, a function or a command. A binary search over the commits of all stages
    finds the last good and the first bad moment, the offsets read between them, and the keys that turned bad. Moments
    where the predicate fails are skipped; if that leaves several commits, all are listed (exit code 2).

    Then replays the batch on a local Spark to find the cause: records, a new program, time, a watermark, a missing or
    duplicate record, or an operation.
    """
    from ...client.searches import Reports, start_search, use_folder_names
    from ...client.show import values
    from ...snapshot.bisect.session import SearchRequest

    app_name, at, _ = (ref := app_name).partition("@")
    app_name, _, named = app_name.partition("/")
    if at:
        hint = f"write `slackwater bisect {app_name}`; if the app was good at {ref}, add --good {ref}"
        raise Usage(f"bisect takes APP or APP/TABLE, found the ref {ref!r}; --good and --bad take refs", hint=hint)
    if every and no_replay:
        raise Usage(
            "--all lists the records that replays find, but --no-replay skips the replays", hint="omit one of them"
        )
    if first and last:
        raise Usage("--first and --last exclude each other: give one of them")
    if out is not None:
        values.check_ending(out)
    reports = Reports(report, md, show_values)
    reports.check()
    typed: Any = options
    edge: Literal["", "first", "last"] = "first" if first else "last" if last else ""
    question = SearchRequest(app_name, table=named, python=python, run=run, edge=edge, **typed)
    if question.is_manual:
        hint = f"or judge each moment yourself: `slackwater bisect start {app_name}`"
        raise Usage("missing --where, --check, --python or --run", hint=hint)
    app, question = session.app(app_name), use_folder_names(session.client, question)
    search = start_search(session.client, question)
    app.note_deleted_input()
    _continue(session, search, out, code, reports, replay=not no_replay, every=every)


@verb("slackwater bisect start flights --good flights@before-deploy", parent=bisect_group)
def start(
    session: Session,
    app_name: str = APP,
    good: str = option("REF", "A good moment. Default: beginning, before the first commit.", ""),
    bad: str = option("REF", "A bad moment. Default: judge the newest first.", ""),
) -> None:
    """Start a manual search, in which you judge each moment.

    Answer with `bisect good`, `bad` or `skip`; each shows the next moment, until one commit is left.
    """
    from ...client.searches import start_search, use_folder_names
    from ...snapshot.bisect.session import SearchRequest

    question = use_folder_names(session.client, SearchRequest(app_name, good=good, bad=bad))
    _continue(session, start_search(session.client, question))


@verb("slackwater bisect good flights", parent=bisect_group)
def good(session: Session, app_name: str = APP, refs: Repeated = _REFS) -> None:
    """Mark a moment as good and show the next one."""
    _answer(session, app_name, "good", refs)


@verb("slackwater bisect bad flights", parent=bisect_group)
def bad(session: Session, app_name: str = APP, refs: Repeated = _REFS) -> None:
    """Mark a moment as bad and show the next one."""
    _answer(session, app_name, "bad", refs)


@verb("slackwater bisect skip flights", "slackwater bisect skip flights flights/carriers@v41", parent=bisect_group)
def skip(session: Session, app_name: str = APP, refs: Repeated = _REFS) -> None:
    """Skip a moment and show another one.

    If only skipped moments are left, lists the commits that may be the first bad one (exit code 2).
    """
    _answer(session, app_name, "skip", refs)


def _answer(session: Session, app_name: str, answer: "Answer", refs: list[str] | None) -> None:
    from ...client.searches import record_answer

    _continue(session, record_answer(session.client, app_name, answer, refs or []))


@verb("slackwater bisect log flights > search.log", parent=bisect_group)
def log(session: Session, app_name: str = APP) -> None:
    """Print the search so far, as commands that `bisect replay` reads."""
    from ...client.searches import search_log as printed

    session.show(printed(session.client, app_name))


@verb("slackwater bisect replay search.log", parent=bisect_group, kafka=True)
def replay(session: Session, file: Path = argument("FILE", "Output of `bisect log`, edited if needed.")) -> None:
    """Replace the app's search by the answers of a saved log, and continue."""
    from ...client.searches import read_search_log

    _continue(session, read_search_log(session.client, file))


@verb("slackwater bisect explain flights", parent=bisect_group)
def explain(session: Session, app_name: str = APP) -> None:
    """Show the answer, duration and reason of each moment of the search."""
    from ...client.searches import read_search
    from ...client.show import verdict

    session.show(verdict.search_explanation_result(read_search(session.client, app_name)))


@verb("slackwater bisect reset flights", parent=bisect_group)
def reset(session: Session, app_name: str = APP) -> None:
    """Delete the app's search."""
    from ...client.searches import delete_search as forget

    session.show(forget(app_name, lambda: session.client))


def _continue(
    session: Session,
    search: "SearchSession",
    out: Path | None = None,
    code: Repeated = None,
    reports: "Reports | None" = None,
    *,
    replay: bool = False,
    every: bool = False,
) -> None:
    from ...client.replays import explain_verdict, replay_programs
    from ...client.searches import clone_name, continue_search, sink_tables
    from ...client.show import values
    from ...client.show import verdict as shown

    client, app, edge = session.client, search.asked.app, search.asked.edge
    with session.progress() as progress:

        def on_step(step: "Evaluation") -> None:
            moment = step.ref or f"{app} before its first commit"
            line = f"{step.number}/{step.total}  {moment}: {step.answer}{f' ({step.why})' if step.why else ''}"
            progress(line, f"{formats.progress_bar(step.number, step.total)}  {line}")

        verdict = continue_search(client, search, on_step)
    if isinstance(verdict, Result):
        session.show(verdict)
        return
    codes = replay_programs(client, verdict, code or []) if replay else None
    if codes and not verdict.candidates:
        # Known now, whatever the replay does.
        session.note(f"{shown.verdict_sentence(verdict)} ({verdict.bad_ref})")
    with session.progress() as progress:
        explanation = explain_verdict(client, verdict, codes, progress)
    if out is not None:
        table, why = shown.rows_for_file(verdict, explanation, every=every)
        if table is not None:
            values.write_table(table, out)
        else:
            session.note(f"note: {out} was not written: {why}")
    clone, tables = clone_name(client, verdict), sink_tables(client, verdict)
    session.show(shown.verdict_result(verdict, explanation, out, edge, clone, every=every, tables=tables))
    if reports is not None:
        reports.write_verdict(client, verdict, explanation)
    if verdict.candidates:
        raise typer.Exit(2)
