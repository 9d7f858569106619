"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import Usage
from ...settings import load
from .. import humane, options, thinned
from ..output import Part, Progress, output_for
from ..tables import Grid, Title

if TYPE_CHECKING:
    from ...snapshot.bisect.changed_keys import ChangedKeys, KeyChange
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.cut.lineage import Window
    from ...store.objects.protocol import ObjectStore

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_BAR_WIDTH = 40
_MAX_KEYS = 10
"""Keys that are printed for people."""


@app.command(
    epilog=options.examples(
        'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
        'slackwater bisect flights --good flights@before-deploy --where "FROM carriers WHERE flights < 0"',
        'slackwater bisect flights --where "SELECT tail FROM aircraft WHERE flights < 0" --out keys.parquet',
    )
)
def bisect(
    app_name: options.App,
    where: Annotated[
        str,
        typer.Option(metavar="SQL", help="A query that returns rows when something is wrong.", show_default=False),
    ],
    good: Annotated[
        str | None, typer.Option(metavar="REF", help="A moment without rows. Default: the beginning.")
    ] = None,
    bad: Annotated[str | None, typer.Option(metavar="REF", help="A moment with rows. Default: now.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all keys that turned bad to a .parquet, .csv or .json file."),
    ] = None,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
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
    settings, output = load(store=store, kafka=kafka), output_for(json=as_json)
    opened = settings.open_store()
    with closing(settings.open_cache()) as cache, output.progress() as tell:
        verdict = search.bisect(
            opened,
            cache,
            app_name,
            where,
            good=good,
            bad=bad,
            on_step=_steps(tell, app_name),
            reader=settings.open_channels() if names_channels(where) else None,
        )
    for ref, cut in verdict.asked.items():
        thinned.tell(output, ref, cut.thinned)
    if verdict.begins:
        output.note(
            f"note: the history of {app_name} before {verdict.begins} was thinned out by gc; it is not searched"
        )
    if out is not None and verdict.keys is not None:
        values.write(verdict.keys.flat(), out)
    elif out is not None:
        output.note(f"note: {verdict.stage} keeps no table, so no key turned bad, and {out} is not written")
    output.show(_data(verdict, out), *_parts(verdict, out, opened, options.said(store)))
    if verdict.more_rows:
        output.note(
            f"note: the query returns more than {humane.count(MAX_ROWS)} rows at {verdict.bad_ref}; "
            "keys that only later rows name are not told"
        )
    if verdict.non_monotone:
        against = ", ".join(f"{step.ref or 'its beginning'} is {_word(step.bad)}" for step in verdict.non_monotone)
        output.note(
            f"it went from good to bad more than once ({against}), and this is one of the changes: "
            "narrow it with --good and --bad"
        )


def _steps(tell: Progress, app_name: str) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        line = f"{step.number}/{step.total}  {_moment(step.ref, app_name)}: {_word(step.bad)}"
        done = min(_BAR_WIDTH, _BAR_WIDTH * step.number // max(step.total, 1))
        tell(line, f"{'━' * done}{'─' * (_BAR_WIDTH - done)}  {line}")

    return on_step


def _moment(ref: str, app_name: str) -> str:
    return ref or f"{app_name} before its first commit"


def _word(is_bad: bool) -> str:
    return "bad" if is_bad else "good"


def _data(verdict: "Verdict", out: Path | None) -> dict[str, Any]:
    from .. import values

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
        "steps": [_step(step) for step in verdict.steps],
        "non_monotone": [_step(step) for step in verdict.non_monotone],
        "thinned_out": {ref: cut.thinned for ref, cut in verdict.asked.items() if cut.thinned is not None},
        "begins": verdict.begins or None,
    }


def _step(step: "Step") -> dict[str, Any]:
    return {"ref": step.ref, "cut": step.cut.versions, "bad": step.bad}


def _parts(verdict: "Verdict", out: Path | None, store: "ObjectStore", flags: str) -> Iterator[Part]:
    now_ms = humane.now_ms()
    yield Title(f"{verdict.stage} v{verdict.bad_version} is the first bad commit of {verdict.app}")
    good = (verdict.good_ref, humane.when(verdict.good_time_ms, now_ms), verdict.good.ref)
    yield Grid.of(
        ("", "", "committed", "the whole app"),
        (
            ("last good", *(good if verdict.good_ref else ("-", "before the first commit", ""))),
            ("first bad", verdict.bad_ref, humane.when(verdict.bad_time_ms, now_ms), verdict.bad.ref),
        ),
    )
    yield ""
    yield Grid.of(("it read", ">records" if _is_source(verdict) else ">messages"), _windows(verdict.lineage.direct))
    if not _is_source(verdict):
        yield ""
        yield Grid.of(("which came from", ">records"), _windows(verdict.lineage.sources))
    if verdict.lineage.lost:
        yield ""
        yield Grid.of(("gone from Kafka and never read", ">messages"), _windows(verdict.lineage.lost))
    if verdict.keys:
        yield from _keys(verdict.keys, out)
    yield ""
    yield f"found with {humane.plural(verdict.evaluations, 'evaluation')}; to go on:"
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
        yield f"and {humane.count(len(shown) - _MAX_KEYS)} more{where or '; --json and --out FILE give all'}"
    elif out is not None:
        yield f"{humane.plural(len(keys), 'key')} in {out}"


def _free_name(store: "ObjectStore", app_name: str) -> str:
    """The name that a clone would have, or the first of its kind that no app has."""
    from ...store.versions.apps import list_apps

    taken, name = list_apps(store), f"{app_name}-staging"
    candidates = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _is_source(verdict: "Verdict") -> bool:
    return verdict.lineage.direct == verdict.lineage.sources


def _windows(windows: "tuple[Window, ...]") -> Iterator[tuple[str, str]]:
    return ((str(window), humane.count(window.end - window.start)) for window in windows)


def _changes(change: "KeyChange", word: Callable[[object], str]) -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; for a key that did not change, one for each value."""
    for name in change.after or change.before or {}:
        before, after = _value(change.before, name, word), _value(change.after, name, word)
        if before != after or change.before == change.after:
            yield (*map(word, change.key.values()), name, before, after)


def _value(row: Mapping[str, object] | None, name: str, word: Callable[[object], str]) -> str:
    return "(no row)" if row is None else word(row.get(name))
