"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ... import instants
from ...errors import Usage
from ...results import formats
from ...results.document import Block, Table, Title
from .. import options
from ..bisect_words import check_none_open, keep, note_input_gone, show_wanted, words
from ..output import Progress
from ..replaying import Code, replayed
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.bisect.changed_keys import ChangedKeys
    from ...snapshot.bisect.record import Guilty
    from ...snapshot.bisect.session import Asked
    from ...snapshot.bisect.session import Session as Search
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.cut.graph import Cut
    from ...snapshot.cut.lineage import Lineage, Window
    from ...store.objects.protocol import ObjectStore
    from ..reports import Reports


@verb(
    'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
    'slackwater bisect flights --check "min(flights) >= 0" --table carriers --good flights@before-deploy',
    'slackwater bisect flights --run "python check.py"      # SLACKWATER_DB is the moment, 0 good, 125 skip, else bad',
    'slackwater bisect flights --where "SELECT tail FROM aircraft WHERE flights < 0" --out keys.parquet',
    "slackwater bisect start flights      # and say of each moment what it is: good, bad, skip",
    of=words,
    whole=True,
    kafka=True,
)
def bisect(
    session: Session,
    app_name: options.App,
    where: str = options.option("SQL", "A query that returns rows when something is wrong.", ""),
    check: str = options.option("CONDITION", "SQL that must hold, over a table's columns or as a SELECT.", ""),
    table: str = options.option("TABLE", "Which table --check is over, where its columns do not say.", ""),
    python: str = options.option("FILE:FUNCTION", "Gets a DuckDB connection with the tables; says if it is good.", ""),
    run: str = options.option("CMD", "Gets the moment as the file $SLACKWATER_DB; exits as git's run has it.", ""),
    good: str = options.option("REF", "A moment at which nothing is wrong. Default: the beginning.", ""),
    bad: str = options.option("REF", "A moment at which something is. Default: now.", ""),
    first: bool = options.flag("--first", "The first change from good to bad, should there be several."),
    last: bool = options.flag("--last", "The last one."),
    scan: bool = options.flag("--scan", "List all changes; for a condition on the single rows of one table."),
    out: Path | None = options.option("FILE", "Write all keys that turned bad to a .parquet, .csv or .json file."),
    code: Path | None = options.option(
        "FILE", "The program that ran, to replay the commit. Default: [programs] of slackwater.toml."
    ),
    no_replay: bool = options.flag("--no-replay", "Stop at the commit; do not look for the input record."),
    report: Path | None = options.option("FILE", "Write what was found as one .html file, without the values."),
    md: Path | None = options.option("FILE", "The same as .md, for a pull request."),
    show_values: bool = options.flag("--show-values", "Show keys, rows, payloads and literals in these files."),
) -> None:
    """Find the first commit at which something is wrong: by a query, a condition, a function or a command.

    The commits of all stages are searched in the order in which `log` shows them, as few as a binary search takes;
    each moment that is looked at is printed as a ref. The answer names the last good and the first bad moment, the
    offsets read between them, and the keys that turned bad. Moments that cannot be judged are passed over; where that
    leaves several commits, all are named, and the exit code is 2.

    Then the batch is replayed here, on a Spark and a store of its own, by the stage's own code, until the input record
    is found that turned it bad.
    """
    from ...results import values
    from ...snapshot.bisect.session import Asked
    from ...snapshot.bisect.session import Session as Search
    from ..reports import Reports

    if "@" in app_name or "/" in app_name:
        name = app_name.partition("@")[0].partition("/")[0]
        raise Usage(
            f"bisect takes the name of an app, found the ref {app_name!r}; --good and --bad take refs",
            hint=f"write `slackwater bisect {name}`, and --good {app_name} if that is where it was good",
        )
    if first and last:
        raise Usage("--first and --last name two changes; give one of them")
    if out is not None:
        values.check_ending(out)
    wanted = Reports(report, md, show_values)
    wanted.check()
    asked = Asked(app_name, where, check, table, python, run, good, bad, "first" if first else "last" if last else "")
    if asked.by_hand:
        raise Usage(
            "nothing says what is wrong",
            hint=f"give --where, --check, --python or --run; or look yourself: `slackwater bisect start {app_name}`",
        )
    if scan:
        _scan(session, asked)
        return
    check_none_open(app_name)
    note_input_gone(session, app_name)
    go_on(session, Search(session.store.url, asked), out, None if no_replay else Code(code), wanted)


def go_on(
    session: Session,
    search: "Search",
    out: Path | None = None,
    code: Code | None = None,
    reports: "Reports | None" = None,
) -> None:
    """Search with what is known, keep what is found out, and show the verdict or what a person is to look at."""
    from msgspec.structs import replace

    from ...snapshot.bisect.predicate import Wanted
    from ...snapshot.bisect.search import bisect as find

    asked, kept = search.asked, search
    predicate = asked.predicate(session.store)
    with closing(session.settings.open_cache()) as cache, session.output.progress() as progress:
        show_step = _steps(progress, asked.app)

        def on_step(step: "Step") -> None:
            nonlocal kept
            show_step(step)
            kept = kept.with_step(step)
            keep(session, kept)

        try:
            verdict = find(
                session.store,
                cache,
                asked.app,
                predicate,
                good=asked.good or None,
                bad=asked.bad or None,
                edge=asked.edge,
                known=search.known,
                on_step=on_step,
                reader=session.settings.open_channels() if predicate.channels and not asked.by_hand else None,
            )
        except Wanted as wanted:
            kept = replace(kept, wanted=wanted.ref, asked=replace(asked, bad=asked.bad or wanted.ref))
            keep(session, kept)
            show_wanted(session, kept, wanted.cut, wanted.left)
            return
        keep(session, replace(kept, found=_found(verdict), wanted=None))
        guilty = replayed(session, verdict, cache, code, progress) if code is not None else None
    _show(session, verdict, guilty, out, asked.edge)
    if reports is not None:
        reports.write(session, verdict, guilty)
    if verdict.candidates:
        raise typer.Exit(2)


def _show(session: Session, verdict: "Verdict", guilty: "Guilty | None", out: Path | None, edge: str) -> None:
    from ...results import values
    from ...snapshot.bisect.verdict import MAX_ROWS

    for ref, cut in verdict.asked.items():
        session.note_thinned(ref, cut.thinned)
    if verdict.begins:
        session.note(
            f"note: the history of {verdict.app} before {verdict.begins} was thinned out by gc; "
            "of that, the moments that are left are searched"
        )
    if out is not None and verdict.keys is not None:
        values.write(verdict.keys.flat(), out)
    elif out is not None:
        why = f"{verdict.stage} keeps no table, so no key turned bad" if not verdict.candidates else "no key is certain"
        session.note(f"note: {why}, and {out} is not written")
    session.show(_data(verdict, out, guilty), *_parts(verdict, out, guilty, session.store, session.flags))
    if verdict.more_rows:
        session.note(
            f"note: the query returns more than {formats.count(MAX_ROWS)} rows at {verdict.bad_ref}; "
            "keys that only later rows name are not reported"
        )
    if verdict.non_monotone:
        against = ", ".join(f"{step.ref or 'its beginning'} is {step.answer}" for step in verdict.non_monotone)
        which = f"the {edge} that was met" if edge else "one of the changes"
        session.note(
            f"it went from good to bad more than once ({against}), and this is {which}: "
            f"narrow it with --good and --bad{'' if edge else ', or say --first or --last'}"
        )


def _found(verdict: "Verdict") -> str:
    if not verdict.candidates:
        return f"{verdict.stage} v{verdict.bad_version} is the first bad commit of {verdict.app}"
    listed = ", ".join(map(str, verdict.candidates))
    return f"the first bad commit of {verdict.app} is one of {listed}"


def _scan(session: Session, asked: "Asked") -> None:
    from ...snapshot.bisect.flips import scan

    with closing(session.settings.open_cache()) as cache:
        found = scan(
            session.store,
            cache,
            asked.app,
            asked.predicate(session.store),
            good=asked.good or None,
            bad=asked.bad or None,
        )
    words = (
        (
            flip.ref,
            instants.when(flip.time_ms),
            "good to bad" if flip.bad else "bad to good",
            formats.count(flip.keys),
        )
        for flip in found.flips
    )
    changes = formats.plural(len(found.flips), "change")
    session.show(
        found,
        Table.of(("commit", "committed", "went from", ">wrong keys"), words) if found.flips else "",
        f"{changes} in {found.stage}@v{found.first + 1}..v{found.last}, of {formats.plural(found.rows, 'row')} written",
    )


def _steps(progress: Progress, app_name: str) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        moment = step.ref or f"{app_name} before its first commit"
        line = f"{step.number}/{step.total}  {moment}: {step.answer}{f' ({step.why})' if step.why else ''}"
        progress(line, f"{formats.bar(step.number, step.total)}  {line}")

    return on_step


def _data(verdict: "Verdict", out: Path | None, guilty: "Guilty | None") -> dict[str, Any]:
    from ...results import values
    from ..bisect_tables import record_data

    def data_of(steps: "Iterable[Step]") -> list[dict[str, Any]]:
        return [
            {
                "ref": step.ref,
                "cut": step.cut.versions,
                "bad": step.bad,
                "answer": step.answer,
                "why": step.why,
                "took_ms": step.took_ms,
            }
            for step in steps
        ]

    def moment(ref: str, version: int, time_ms: int, cut: "Cut") -> dict[str, Any]:
        return {"ref": ref, "version": version, "time_ms": time_ms, "cut": cut.versions}

    keys = verdict.keys
    return {
        "app": verdict.app,
        "where": verdict.where,
        "predicate": verdict.predicate.text,
        "stage": verdict.stage,
        "last_good": moment(verdict.good_ref, verdict.good_version, verdict.good_time_ms, verdict.good),
        "first_bad": moment(verdict.bad_ref, verdict.bad_version, verdict.bad_time_ms, verdict.bad),
        "windows": verdict.lineage.direct,
        "source_windows": verdict.lineage.sources,
        "lost_windows": verdict.lineage.lost,
        "keys": values.stream({"key": key.key, "before": key.before, "after": key.after} for key in keys or ()),
        "keys_named": bool(keys and keys.named),
        "file": str(out) if out is not None and keys is not None else None,
        "rows": values.for_json(verdict.rows)["rows"],
        "more_rows": verdict.more_rows,
        "candidates": verdict.candidates,
        "evaluations": verdict.evaluations,
        "steps": data_of(verdict.steps),
        "non_monotone": data_of(verdict.non_monotone),
        "thinned_out": {ref: cut.thinned for ref, cut in verdict.asked.items() if cut.thinned is not None},
        "begins": verdict.begins or None,
        "record": record_data(guilty) if guilty is not None else None,
    }


def _parts(
    verdict: "Verdict", out: Path | None, guilty: "Guilty | None", store: "ObjectStore", flags: str
) -> Iterator[Block]:
    from ...store.versions.apps import free_name
    from ..bisect_tables import record_parts

    yield Title(_found(verdict))
    if verdict.candidates:
        yield (
            "the versions in between were thinned out by gc"
            if verdict.thinned
            else "there are only moments left that cannot be judged; `slackwater bisect explain` says why"
        )
    good = (verdict.good_ref, instants.when(verdict.good_time_ms), verdict.good.ref)
    yield Table.of(
        ("", "", "committed", "the whole app"),
        (
            ("last good", *(good if verdict.good_ref else ("-", "before the first commit", ""))),
            ("first bad", verdict.bad_ref, instants.when(verdict.bad_time_ms), verdict.bad.ref),
        ),
    )
    yield ""
    yield from read(verdict.lineage)
    if verdict.keys:
        yield from _keys(verdict.keys, out)
    if guilty is not None:
        yield from record_parts(guilty)
    yield ""
    if not verdict.where and verdict.rows.column(0)[0].as_py():
        yield f"at {verdict.bad_ref}: {verdict.rows.column(0)[0]}"
    yield f"found with {_effort(verdict)}; to go on:"
    query = verdict.where or f"FROM {verdict.stage}"
    if verdict.good_ref:
        yield f"  slackwater query {verdict.good_ref} {shlex.quote(query)}{flags}"
    yield f"  slackwater query {verdict.bad_ref} {shlex.quote(query)}{flags}"
    if verdict.good_ref:
        yield f"  slackwater clone {verdict.good_ref} {free_name(store, f'{verdict.app}-staging')}{flags}"


def _effort(verdict: "Verdict") -> str:
    made = sum(not step.given for step in verdict.steps)
    if not made:
        return formats.plural(len(verdict.steps), "answer")
    more = f", {formats.count(made)} with those that looked for other changes" if made > verdict.evaluations else ""
    return f"{formats.plural(verdict.evaluations, 'evaluation')}{more}"


def _keys(keys: "ChangedKeys", out: Path | None) -> Iterator[Block]:
    """The first keys, with a line for each value that changed."""
    from ..bisect_tables import changes

    # A key that the query names may have turned bad by another row of a join: those stand in --json and --out.
    shown = keys.changed() or keys
    yield ""
    if not keys.named:
        yield "the query names no key of this table; keys that this commit changed:"
    yield changes(shown)
    where = "" if out is None else f"; all are in {out}"
    if len(shown) > formats.MOST_SHOWN:
        yield f"and {formats.count(len(shown) - formats.MOST_SHOWN)} more{where or '; --json and --out FILE give all'}"
    elif out is not None:
        yield f"{formats.plural(len(keys), 'key')} in {out}"


def read(lineage: "Lineage") -> Iterator[Block]:
    """What a commit read, what that came from, and what it passed over."""
    reads_sources = lineage.direct == lineage.sources
    if lineage.direct:
        yield Table.of(("it read", ">records" if reads_sources else ">messages"), _windows(lineage.direct))
    else:
        yield "it read no record"
    if not reads_sources:
        yield ""
        if lineage.sources:
            yield Table.of(("which came from", ">records"), _windows(lineage.sources))
        else:
            yield "no record is behind these: rows fell due, windows ended, or rejected records were retried"
    if lineage.lost:
        yield ""
        yield Table.of(("gone from Kafka and never read", ">messages"), _windows(lineage.lost))


def _windows(windows: "tuple[Window, ...]") -> Iterator[tuple[str, str]]:
    return ((str(window), formats.count(window.end - window.start)) for window in windows)
