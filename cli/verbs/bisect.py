"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import instants
from ...errors import Usage
from .. import formats, options
from ..output import Progress
from ..replaying import replayed
from ..session import Session, verb
from ..tables import Grid, Title
from ..terminal import Part

if TYPE_CHECKING:
    from ...snapshot.bisect.changed_keys import ChangedKeys
    from ...snapshot.bisect.record import Guilty
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.cut.graph import Cut
    from ...snapshot.cut.lineage import Window
    from ...store.objects.protocol import ObjectStore

_BAR_WIDTH = 40


@verb(
    'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
    'slackwater bisect flights --good flights@before-deploy --where "FROM carriers WHERE flights < 0"',
    'slackwater bisect flights --where "SELECT tail FROM aircraft WHERE flights < 0" --out keys.parquet',
    kafka=True,
)
def bisect(
    session: Session,
    app_name: options.App,
    where: str = options.option("SQL", "A query that returns rows when something is wrong.", ...),
    good: str | None = options.option("REF", "A moment without rows. Default: the beginning."),
    bad: str | None = options.option("REF", "A moment with rows. Default: now."),
    out: Path | None = options.option("FILE", "Write all keys that turned bad to a .parquet, .csv or .json file."),
    code: Path | None = options.option(
        "FILE", "The program that ran, to replay the commit. Default: [programs] of slackwater.toml."
    ),
    no_replay: bool = options.flag("--no-replay", "Stop at the commit; do not look for the input record."),
) -> None:
    """Find the first commit at which a query returns rows.

    The commits of all stages are searched in the order in which `log` shows them, as few as a binary search takes;
    each moment that is looked at is printed as a ref. The answer names the last good and the first bad moment, the
    offsets read between them, and the keys that turned bad. Then the batch is replayed here, on a Spark and a store of
    its own, by the stage's own code, until the input record is found that turned it bad.
    """
    from ...snapshot.bisect import search
    from ...snapshot.query.channel_tables import names_channels
    from .. import values

    _check_name(app_name)
    if out is not None:
        values.check_ending(out)
    store, reader = session.store, session.settings.open_channels() if names_channels(where) else None
    with closing(session.settings.open_cache()) as cache, session.output.progress() as progress:
        on_step = _steps(progress, app_name)
        verdict = search.bisect(store, cache, app_name, where, good=good, bad=bad, on_step=on_step, reader=reader)
        guilty = None if no_replay else replayed(session, verdict, cache, code, progress)
    _show(session, verdict, out, guilty)


def _check_name(app_name: str) -> None:
    if "@" in app_name or "/" in app_name:
        name = app_name.partition("@")[0].partition("/")[0]
        raise Usage(
            f"bisect takes the name of an app, found the ref {app_name!r}; --good and --bad take refs",
            hint=f"write `slackwater bisect {name}`, and --good {app_name} if that is where it was good",
        )


def _show(session: Session, verdict: "Verdict", out: Path | None, guilty: "Guilty | None") -> None:
    from ...snapshot.bisect.verdict import MAX_ROWS
    from .. import values

    for ref, cut in verdict.asked.items():
        session.note_thinned(ref, cut.thinned)
    if verdict.begins:
        session.note(
            f"note: the history of {verdict.app} before {verdict.begins} was thinned out by gc; it is not searched"
        )
    if out is not None and verdict.keys is not None:
        values.write(verdict.keys.flat(), out)
    elif out is not None:
        session.note(f"note: {verdict.stage} keeps no table, so no key turned bad, and {out} is not written")
    session.show(_data(verdict, out, guilty), *_parts(verdict, out, guilty, session.store, session.flags))
    if verdict.more_rows:
        session.note(
            f"note: the query returns more than {formats.count(MAX_ROWS)} rows at {verdict.bad_ref}; "
            "keys that only later rows name are not reported"
        )
    if verdict.non_monotone:
        against = ", ".join(f"{step.ref or 'its beginning'} is {_word(step.bad)}" for step in verdict.non_monotone)
        session.note(
            f"it went from good to bad more than once ({against}), and this is one of the changes: "
            "narrow it with --good and --bad"
        )


def _steps(progress: Progress, app_name: str) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        moment = step.ref or f"{app_name} before its first commit"
        line = f"{step.number}/{step.total}  {moment}: {_word(step.bad)}"
        done = min(_BAR_WIDTH, _BAR_WIDTH * step.number // max(step.total, 1))
        progress(line, f"{'━' * done}{'─' * (_BAR_WIDTH - done)}  {line}")

    return on_step


def _word(is_bad: bool) -> str:
    return "bad" if is_bad else "good"


def _data(verdict: "Verdict", out: Path | None, guilty: "Guilty | None") -> dict[str, Any]:
    from .. import values
    from ..bisect_tables import record_data

    def data_of(steps: "Iterable[Step]") -> list[dict[str, Any]]:
        return [{"ref": step.ref, "cut": step.cut.versions, "bad": step.bad} for step in steps]

    def moment(ref: str, version: int, time_ms: int, cut: "Cut") -> dict[str, Any]:
        return {"ref": ref, "version": version, "time_ms": time_ms, "cut": cut.versions}

    keys = verdict.keys
    return {
        "app": verdict.app,
        "where": verdict.where,
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
        "evaluations": verdict.evaluations,
        "steps": data_of(verdict.steps),
        "non_monotone": data_of(verdict.non_monotone),
        "thinned_out": {ref: cut.thinned for ref, cut in verdict.asked.items() if cut.thinned is not None},
        "begins": verdict.begins or None,
        "record": record_data(guilty) if guilty is not None else None,
    }


def _parts(
    verdict: "Verdict", out: Path | None, guilty: "Guilty | None", store: "ObjectStore", flags: str
) -> Iterator[Part]:
    from ..bisect_tables import record_parts

    yield Title(f"{verdict.stage} v{verdict.bad_version} is the first bad commit of {verdict.app}")
    good = (verdict.good_ref, instants.when(verdict.good_time_ms), verdict.good.ref)
    yield Grid.of(
        ("", "", "committed", "the whole app"),
        (
            ("last good", *(good if verdict.good_ref else ("-", "before the first commit", ""))),
            ("first bad", verdict.bad_ref, instants.when(verdict.bad_time_ms), verdict.bad.ref),
        ),
    )
    yield ""
    lineage, reads_sources = verdict.lineage, verdict.lineage.direct == verdict.lineage.sources
    yield Grid.of(("it read", ">records" if reads_sources else ">messages"), _windows(lineage.direct))
    if not reads_sources:
        yield ""
        yield Grid.of(("which came from", ">records"), _windows(lineage.sources))
    if lineage.lost:
        yield ""
        yield Grid.of(("gone from Kafka and never read", ">messages"), _windows(lineage.lost))
    if verdict.keys:
        yield from _keys(verdict.keys, out)
    if guilty is not None:
        yield from record_parts(guilty)
    yield ""
    yield f"found with {formats.plural(verdict.evaluations, 'evaluation')}; to go on:"
    if verdict.good_ref:
        yield f"  slackwater query {verdict.good_ref} {shlex.quote(verdict.where)}{flags}"
    yield f"  slackwater query {verdict.bad_ref} {shlex.quote(verdict.where)}{flags}"
    if verdict.good_ref:
        yield f"  slackwater clone {verdict.good_ref} {_free_name(store, verdict.app)}{flags}"


def _keys(keys: "ChangedKeys", out: Path | None) -> Iterator[Part]:
    """The first keys, with a line for each value that changed."""
    from ..bisect_tables import MAX_KEYS, changes

    # A key that the query names may have turned bad by another row of a join: those stand in --json and --out.
    shown = keys.changed() or keys
    yield ""
    if not keys.named:
        yield "the query names no key of this table; keys that this commit changed:"
    yield changes(shown)
    where = "" if out is None else f"; all are in {out}"
    if len(shown) > MAX_KEYS:
        yield f"and {formats.count(len(shown) - MAX_KEYS)} more{where or '; --json and --out FILE give all'}"
    elif out is not None:
        yield f"{formats.plural(len(keys), 'key')} in {out}"


def _free_name(store: "ObjectStore", app_name: str) -> str:
    """The name that a clone would have, or the first of its kind that no app has."""
    from ...store.versions.apps import list_apps

    taken, name = list_apps(store), f"{app_name}-staging"
    candidates = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _windows(windows: "tuple[Window, ...]") -> Iterator[tuple[str, str]]:
    return ((str(window), formats.count(window.end - window.start)) for window in windows)
