"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Usage
from .. import formats, options
from ..output import Progress
from ..session import Session, verb
from ..tables import Grid, Title
from ..terminal import Part

if TYPE_CHECKING:
    from ...snapshot.bisect.changed_keys import ChangedKeys
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.cut.lineage import Window
    from ...snapshot.diff.key_changes import KeyChange
    from ...store.objects.protocol import ObjectStore

_BAR_WIDTH = 40
_MAX_KEYS = 10
"""Keys that are printed for people."""


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
) -> None:
    """Find the first commit at which a query returns rows.

    The commits of all stages are searched in the order in which `log` shows them, as few as a binary search takes;
    each moment that is looked at is printed as a ref. The answer names the last good and the first bad moment, the
    offsets read between them, and the keys that turned bad.
    """
    from ...snapshot.bisect import search
    from ...snapshot.bisect.verdict import MAX_ROWS
    from ...snapshot.query.channel_tables import names_channels
    from .. import values

    if "@" in app_name or "/" in app_name:
        name = app_name.partition("@")[0].partition("/")[0]
        raise Usage(
            f"bisect takes the name of an app, found the ref {app_name!r}; --good and --bad take refs",
            hint=f"write `slackwater bisect {name}`, and --good {app_name} if that is where it was good",
        )
    if out is not None:
        values.check_ending(out)
    opened = session.store
    with closing(session.settings.open_cache()) as cache, session.output.progress() as progress:
        verdict = search.bisect(
            opened,
            cache,
            app_name,
            where,
            good=good,
            bad=bad,
            on_step=_steps(progress, app_name),
            reader=session.settings.open_channels() if names_channels(where) else None,
        )
    for ref, cut in verdict.asked.items():
        session.note_thinned(ref, cut.thinned)
    if verdict.begins:
        session.note(
            f"note: the history of {app_name} before {verdict.begins} was thinned out by gc; it is not searched"
        )
    if out is not None and verdict.keys is not None:
        values.write(verdict.keys.flat(), out)
    elif out is not None:
        session.note(f"note: {verdict.stage} keeps no table, so no key turned bad, and {out} is not written")
    session.show(_data(verdict, out), *_parts(verdict, out, opened, session.flags))
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


def _data(verdict: "Verdict", out: Path | None) -> dict[str, Any]:
    from .. import values

    def data_of(steps: "Iterable[Step]") -> list[dict[str, Any]]:
        return [{"ref": step.ref, "cut": step.cut.versions, "bad": step.bad} for step in steps]

    keys = verdict.keys
    return {
        "app": verdict.app,
        "where": verdict.where,
        "stage": verdict.stage,
        "last_good": {
            "ref": verdict.good_ref,
            "version": verdict.good_version,
            "time_ms": verdict.good_time_ms,
            "cut": verdict.good.versions,
        },
        "first_bad": {
            "ref": verdict.bad_ref,
            "version": verdict.bad_version,
            "time_ms": verdict.bad_time_ms,
            "cut": verdict.bad.versions,
        },
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
    }


def _parts(verdict: "Verdict", out: Path | None, store: "ObjectStore", flags: str) -> Iterator[Part]:
    yield Title(f"{verdict.stage} v{verdict.bad_version} is the first bad commit of {verdict.app}")
    good = (verdict.good_ref, formats.when(verdict.good_time_ms), verdict.good.ref)
    yield Grid.of(
        ("", "", "committed", "the whole app"),
        (
            ("last good", *(good if verdict.good_ref else ("-", "before the first commit", ""))),
            ("first bad", verdict.bad_ref, formats.when(verdict.bad_time_ms), verdict.bad.ref),
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
    yield ""
    yield f"found with {formats.plural(verdict.evaluations, 'evaluation')}; to go on:"
    if verdict.good_ref:
        yield f"  slackwater query {verdict.good_ref} {shlex.quote(verdict.where)}{flags}"
    yield f"  slackwater query {verdict.bad_ref} {shlex.quote(verdict.where)}{flags}"
    if verdict.good_ref:
        yield f"  slackwater clone {verdict.good_ref} {_free_name(store, verdict.app)}{flags}"


def _keys(keys: "ChangedKeys", out: Path | None) -> Iterator[Part]:
    """The first keys, with a line for each value that changed."""
    from ..values import word

    # A key that the query names may have turned bad by another row of a join: those stand in --json and --out.
    shown = keys.changed() or keys
    yield ""
    if not keys.named:
        yield "the query names no key of this table; keys that this commit changed:"
    headings = (*keys.keys.column_names, "column", ">before", ">after")
    yield Grid.of(headings, (line for key in islice(shown, _MAX_KEYS) for line in _changes(key, word)))
    where = "" if out is None else f"; all are in {out}"
    if len(shown) > _MAX_KEYS:
        yield f"and {formats.count(len(shown) - _MAX_KEYS)} more{where or '; --json and --out FILE give all'}"
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


def _changes(change: "KeyChange", word: Callable[[object], str]) -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; for a key that did not change, one for each value."""
    for name in change.after or change.before or {}:
        before, after = _value(change.before, name, word), _value(change.after, name, word)
        if before != after or change.before == change.after:
            yield (*map(word, change.key.values()), name, before, after)


def _value(row: Mapping[str, object] | None, name: str, word: Callable[[object], str]) -> str:
    return "(no row)" if row is None else word(row.get(name))
