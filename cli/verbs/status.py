"""`slackwater status`: how far the apps of a store root are."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...durations import HOUR_MS, format_ms
from ...errors import Corruption, Refused, SlackwaterError, Usage
from ...settings import Settings, load
from .. import humane, options
from ..output import Output, Part, output_for
from ..tables import Grid

if TYPE_CHECKING:
    from ...store.objects.protocol import ObjectStore
    from ..overview import AppOverview, InputOverview, StageOverview, TableFigures

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_KAFKA_TIMEOUT_S = 3.0
_FIGURES = (
    "table",
    ">L0",
    ">debt",
    ">read amp",
    ">write amp",
    ">cache hits",
    ">filter hits",
    ">commit",
    ">of versions",
)


@app.command(
    epilog=options.examples(
        "slackwater status",
        "slackwater status flights --watch",
        "slackwater status flights --cost --since 1d          # requests, bytes, and S3's bill for a month",
        "slackwater status flights --json | jq '.[].stages[].inputs[].lag'",
    )
)
def status(
    app_name: Annotated[
        str | None,
        typer.Argument(metavar="APP", help="Only this app. Default: all in the store.", show_default=False),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again until Ctrl-C.")] = False,
    every: Annotated[
        int, options.span("How often --watch looks. Default: 2s.", least_ms=100, bare_seconds=True)
    ] = 2_000,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show instead what the store is asked and keeps, and what a month costs.")
    ] = False,
    since: Annotated[int | None, options.span("With --cost: by the versions of this time. Default: 1h.")] = None,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Show how far every stage is, and what it has not read yet; of one app also how its tables do.

    The lag of users' topics needs Kafka; without it everything else is shown.
    """
    settings, output = load(store=store, kafka=kafka), output_for(json=as_json)
    opened = settings.open_store()
    if cost:
        if watch:
            raise Usage("--cost and --watch exclude each other")
        _show_cost(opened, settings, output, app_name, since or HOUR_MS)
        return
    if since is not None:
        raise Usage("--since goes with --cost")
    if not watch:
        found, damaged, silence = _look(opened, settings, app_name)
        output.show(found, *_parts(opened, found, damaged=bool(damaged), in_detail=app_name is not None))
        for sentence in (*damaged, *silence):
            output.note(sentence)
        if damaged:
            raise typer.Exit(1)
        return
    with output.live() as show:
        while True:
            found, damaged, silence = _look(opened, settings, app_name)
            parts = _parts(opened, found, damaged=bool(damaged), in_detail=app_name is not None)
            show(found, *parts, *damaged, *silence)
            time.sleep(every / 1_000)


def _look(
    store: "ObjectStore", settings: Settings, app_name: str | None
) -> tuple[tuple["AppOverview", ...], tuple[str, ...], tuple[str, ...]]:
    """The apps, what of them cannot be read, and other notes: snapshots that wait, why users' lag is missing."""
    from ...snapshot.cut.requests import open_requests
    from ...store.versions.apps import list_apps
    from ..overview import overview
    from ..waiting import waiting_for

    ends = _EndOffsets(settings)
    names = (app_name,) if app_name else list_apps(store)
    found: list[AppOverview] = []
    damaged: list[str] = []
    unanswered: list[str] = []
    for name in names:
        try:
            found.append(overview(store, name, ends, in_detail=app_name is not None))
        except (Corruption, Refused) as error:  # refused: an app that is being removed
            if app_name:
                raise
            damaged.append(f"{name}: {error.message} ({error.hint})")
            continue
        damaged += found[-1].damaged
        if found[-1].requested and not found[-1].damaged:
            unanswered += waiting_for(store, name, open_requests(store, name))
    return tuple(found), tuple(damaged), (*unanswered, *((ends.silence,) if ends.silence else ()))


def _show_cost(store: "ObjectStore", settings: Settings, output: Output, app_name: str | None, span_ms: int) -> None:
    from ...store.versions.apps import list_apps
    from ..cost import cost_of, parts

    since_ms, prices = humane.now_ms() - span_ms, settings.prices
    costs = tuple(cost_of(store, name, since_ms, prices) for name in ((app_name,) if app_name else list_apps(store)))
    output.show(costs, *(parts(costs, format_ms(span_ms)) if costs else (_empty(store),)))


class _EndOffsets:
    """Asks Kafka where topics end; after its first silence no more, as each question takes seconds."""

    def __init__(self, settings: Settings) -> None:
        self._client = settings.kafka() if settings.brokers else None
        self.silence = ""

    def __call__(self, topic: str) -> tuple[int, ...] | None:
        if self._client is None or self.silence:
            return None
        from ...pipeline.kafka.topics import end_offsets

        try:
            return end_offsets(self._client, topic, timeout_s=_KAFKA_TIMEOUT_S)
        except SlackwaterError as error:
            self.silence = f"the lag of users' topics is not known: {error.message}"
            return None


def _empty(store: "ObjectStore") -> str:
    # A root with a typing error looks like one that nothing was written to yet; a folder can tell the two apart.
    if store.url.startswith("/") and not Path(store.url).exists():
        return f"no app in this store yet, and no folder {store.url}; `slackwater run FILE` makes both"
    return "no app in this store yet; `slackwater run FILE` makes one"


def _parts(store: "ObjectStore", found: tuple["AppOverview", ...], *, damaged: bool, in_detail: bool) -> Iterator[Part]:
    if not found and not damaged:
        yield _empty(store)
    now_ms = humane.now_ms()
    for number, each in enumerate(found):
        if number:
            yield ""
        yield _title(each, now_ms)
        yield Grid.of(
            ("stage", "runs", ">version", ">epoch", "committed", ">rows read", ">keys", ">SSTs", ">size", "lag"),
            (_row(stage, now_ms) for stage in each.stages),
        )
        if in_detail:
            if any(stage.figures for stage in each.stages):
                yield ""
                yield Grid.of(
                    _FIGURES, (_figures(stage, figures) for stage in each.stages if (figures := stage.figures))
                )
            yield ""
            yield Grid.of(("stage", "reads", ">next offset", ">end", ">lag"), _partitions(each))


def _title(each: "AppOverview", now_ms: int) -> str:
    words = [f"{each.app}  created {humane.when(each.created_ms, now_ms)}"]
    if each.origin:
        words.append(f"clone of {each.origin.app}@{each.origin.snapshot}")
    if each.requested:
        words.append(f"snapshot asked for: {', '.join(each.requested)}")
    return "; ".join(words)


def _row(stage: "StageOverview", now_ms: int) -> tuple[str, ...]:
    keys = "-" if stage.keys is None else f"{'' if stage.keys_exact else '≤'}{humane.count(stage.keys)}"
    has_table = stage.keys is not None
    return (
        stage.stage,
        "?" if stage.runner is None else "yes" if stage.runner else "no",
        f"v{stage.version}",
        str(stage.epoch),
        humane.age(stage.time_ms, now_ms),
        humane.count(stage.rows),
        keys,
        str(stage.ssts) if has_table else "-",
        humane.size(stage.bytes) if has_table else "-",
        "retired" if stage.retired else "; ".join(map(_lag, stage.inputs)),
    )


def _lag(source: "InputOverview") -> str:
    if not source.upstream:
        # A clone may read another topic than the program names.
        return f"{source.topic} {_number(source.records)}"
    if source.lag == 0 or source.versions is None:
        return f"{source.name} {_number(source.lag)}"
    rows = "? rows" if source.records is None else humane.plural(source.records, "row")
    return f"{source.name} {humane.plural(source.versions, 'version')}, {rows}"


def _figures(stage: "StageOverview", figures: "TableFigures") -> tuple[str, ...]:
    return (
        stage.stage,
        str(figures.l0_files),
        humane.size(figures.debt_bytes),
        _ratio(figures.read_amplification, "{:.1f}"),
        _ratio(figures.write_amplification, "{:.1f}"),
        _ratio(figures.cache_hits, "{:.0%}"),
        _ratio(figures.filter_hits, "{:.0%}"),
        _ratio(figures.commit_ms, "{:.0f} ms"),
        humane.count(figures.versions),
    )


def _ratio(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)


def _partitions(each: "AppOverview") -> Iterator[tuple[str, ...]]:
    for stage in each.stages:
        for source in () if stage.retired else stage.inputs:
            ends = source.ends or ()
            for partition in range(max(len(source.offsets), len(ends))):
                # A partition added since the last commit has not been read at all.
                offset = source.offsets[partition] if partition < len(source.offsets) else 0
                end = ends[partition] if partition < len(ends) else None
                lag = None if end is None else max(0, end - offset)
                yield (
                    stage.stage,
                    f"{source.topic}[{partition}]",
                    str(offset),
                    "?" if end is None else str(end),
                    _number(lag),
                )


def _number(lag: int | None) -> str:
    return "?" if lag is None else humane.count(lag)
