"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..store.errors import Usage
from . import humane, options
from .output import Part, Progress, output_for
from .settings import load
from .tables import Grid, Title

if TYPE_CHECKING:
    from ..snapshot.bisect import Step, Verdict
    from ..snapshot.lineage import Window
    from ..store.objects import ObjectStore

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_BAR_WIDTH = 40


@app.command(
    epilog=options.examples(
        'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
        'slackwater bisect flights --good flights@before-deploy --where "FROM carriers WHERE flights < 0"',
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
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Find the first commit at which a query returns rows.

    The query is evaluated at consistent moments of the whole app, as few as a binary search takes. The
    answer names the last good and the first bad version, the offsets read between them, and the keys that
    turned bad.
    """
    from ..snapshot import bisect as search
    from ..snapshot.channel_tables import names_channels

    if "@" in app_name or "/" in app_name:
        name = app_name.partition("@")[0].partition("/")[0]
        raise Usage(
            f"bisect takes the name of an app, found the ref {app_name!r}; --good and --bad take refs",
            hint=f"write `slackwater bisect {name}`, and --good {app_name} if that is where it was good",
        )
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
            on_step=_steps(tell),
            reader=settings.open_channels() if names_channels(where) else None,
        )
    output.show(_data(verdict), *_parts(verdict, opened, options.said(store)))
    if verdict.non_monotone:
        against = ", ".join(f"{step.cut.ref} is {_word(step.bad)}" for step in verdict.non_monotone)
        output.note(
            f"it went from good to bad more than once ({against}), and this is one of the changes: "
            "narrow it with --good and --bad"
        )


def _steps(tell: Progress) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        line = f"{step.number}/{step.total}  {step.cut.ref}: {_word(step.bad)}"
        done = min(_BAR_WIDTH, _BAR_WIDTH * step.number // max(step.total, 1))
        tell(line, f"{'━' * done}{'─' * (_BAR_WIDTH - done)}  {line}")

    return on_step


def _word(is_bad: bool) -> str:
    return "bad" if is_bad else "good"


def _data(verdict: "Verdict") -> dict[str, Any]:
    from . import values

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
        "keys": verdict.keys,
        "rows": values.rows(verdict.rows),
        "evaluations": verdict.evaluations,
        "non_monotone": [{"cut": step.cut.versions, "bad": step.bad} for step in verdict.non_monotone],
    }


def _parts(verdict: "Verdict", store: "ObjectStore", flags: str) -> Iterator[Part]:
    now_ms = humane.now_ms()
    yield Title(f"{verdict.stage} v{verdict.bad_version} is the first bad commit of {verdict.app}")
    good = (f"v{verdict.good_version}", humane.when(verdict.good_time_ms, now_ms), verdict.good.ref)
    yield Grid.of(
        ("", ">version", "committed", "the whole app"),
        (
            ("last good", *(good if verdict.good_version else ("-", "before its first commit", ""))),
            (
                "first bad",
                f"v{verdict.bad_version}",
                humane.when(verdict.bad_time_ms, now_ms),
                verdict.bad.ref,
            ),
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
        yield ""
        key = tuple(verdict.keys[0].key)
        yield Grid.of((*key, "column", ">before", ">after"), _changes(verdict))
    yield ""
    yield f"found with {humane.plural(verdict.evaluations, 'evaluation')}; to go on:"
    if verdict.good_ref:
        yield f"  slackwater query {verdict.good_ref} {shlex.quote(verdict.where)}{flags}"
    yield f"  slackwater query {verdict.bad_ref} {shlex.quote(verdict.where)}{flags}"
    if verdict.good_ref:
        yield f"  slackwater clone {verdict.good_ref} {_free_name(store, verdict.app)}{flags}"


def _free_name(store: "ObjectStore", app_name: str) -> str:
    """The name that a clone would have, or the first of its kind that no app has."""
    from ..store.apps import list_apps

    taken, name = list_apps(store), f"{app_name}-staging"
    candidates = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _is_source(verdict: "Verdict") -> bool:
    return verdict.lineage.direct == verdict.lineage.sources


def _windows(windows: "tuple[Window, ...]") -> Iterator[tuple[str, str]]:
    return ((str(window), humane.count(window.end - window.start)) for window in windows)


def _changes(verdict: "Verdict") -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; keys that did not change are left out unless none did."""
    from .values import word

    changed = [key for key in verdict.keys if key.before != key.after] or verdict.keys
    for change in changed:
        names = [*(change.after or change.before or {})]
        for name in names:
            before, after = _value(change.before, name, word), _value(change.after, name, word)
            if before != after or change.before == change.after:
                yield (*map(word, change.key.values()), name, before, after)


def _value(row: Mapping[str, object] | None, name: str, word: Callable[[object], str]) -> str:
    return "(no row)" if row is None else word(row.get(name))
