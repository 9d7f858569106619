"""How far apps are, and what they cost."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from .. import instants
from ..moments.status.cost import AppCost, StageCost
from ..moments.status.lag import InputLag
from ..moments.status.overview import AppOverview, StageOverview, TableFigures
from . import formats
from .document import Block, Cell, Result, Table, Title

_FIGURES = ("table", ">L0", ">debt", ">read amp", ">write amp", ">cache hits", ">filter hits", ">commit")


def status(
    found: Sequence[AppOverview], *, in_detail: bool, damaged: Sequence[str], notes: Iterable[str], empty: str
) -> Result:
    """The stages of each app; with `in_detail` also its tables and the partitions of its inputs.

    `damaged` says what could not be read, `notes` what else is worth knowing, `empty` that there is nothing at all.
    """
    blocks = _overviews(found, in_detail=in_detail) if found or damaged else (empty,)
    return Result(found, *blocks, notes=(*damaged, *notes), failed=bool(damaged))


def _overviews(found: Sequence[AppOverview], *, in_detail: bool) -> Iterator[Block]:
    for number, each in enumerate(found):
        if number:
            yield ""
        yield _title(each)
        yield Table.of(
            ("stage", "runs", ">version", ">epoch", "committed", ">rows read", ">keys", ">SSTs", ">size", "lag"),
            (_row(stage) for stage in each.stages),
        )
        if any(stage.sinks for stage in each.stages):
            yield ""
            yield Table.of(("stage", "publishes", ">up to", "lag"), _sinks(each))
        yield from (
            f"{stage.stage} rejected {formats.plural(stage.rejected, 'record')}, {stage.rejected_waiting:,} waiting: "
            f"slackwater rejected {each.app}"
            for stage in each.stages
            if stage.rejected
        )
        if in_detail:
            if any(stage.figures for stage in each.stages):
                yield ""
                yield Table.of(
                    (*_FIGURES, ">of versions"),
                    (_figures(stage, figures) for stage in each.stages if (figures := stage.figures)),
                )
            yield from (
                f"{stage.stage}: {', '.join(f'{name} since v{version}' for name, version in stage.since.items())}"
                for stage in each.stages
                if stage.since
            )
            yield from (
                _event_time(stage)
                for stage in each.stages
                if stage.watermark_ms is not None or stage.ahead or stage.late
            )
            yield ""
            yield Table.of(("stage", "reads", ">next offset", ">end", ">lag"), _partitions(each))


def _title(each: AppOverview) -> str:
    words = [f"{each.app}  created {instants.when(each.created_ms)}"]
    if each.origin:
        words.append(f"clone of {each.origin.app}@{each.origin.snapshot}")
    if each.requested:
        words.append(f"snapshot asked for: {', '.join(each.requested)}")
    return "; ".join(words)


def _row(stage: StageOverview) -> tuple[Cell, ...]:
    keys = "-" if stage.keys is None else f"{'' if stage.keys_exact else '≤'}{formats.count(stage.keys)}"
    has_table = stage.keys is not None
    return (
        stage.stage,
        "?" if stage.runner is None else "yes" if stage.runner else "no",
        f"v{stage.version}",
        str(stage.epoch),
        instants.age(stage.time_ms),
        stage.rows,
        keys,
        str(stage.ssts) if has_table else "-",
        formats.size(stage.bytes) if has_table else "-",
        f"called {stage.called} since"
        if stage.called
        else "retired"
        if stage.retired
        else "; ".join(map(_lag, stage.inputs)),
    )


def _event_time(stage: StageOverview) -> str:
    watermark = "none yet" if stage.watermark_ms is None else instants.when(stage.watermark_ms)
    ahead = f"; {formats.plural(stage.ahead, 'row')} came too far ahead of the clock" if stage.ahead else ""
    late = f"; {formats.plural(stage.late, 'row')} left out of the table as late" if stage.late else ""
    return f"{stage.stage}: watermark {watermark}{ahead}{late}"


def _lag(source: InputLag) -> str:
    if not source.upstream:
        # A clone may read another topic than the program names.
        return f"{source.topic} {formats.count(source.records)}"
    if source.lag == 0 or source.versions is None:
        return f"{source.name} {formats.count(source.lag)}"
    rows = "? rows" if source.records is None else formats.plural(source.records, "row")
    return f"{source.name} {formats.plural(source.versions, 'version')}, {rows}"


def _sinks(each: AppOverview) -> Iterator[tuple[Cell, ...]]:
    for stage in each.stages:
        for sink in stage.sinks:
            at = "-" if sink.place is None else f"v{sink.place}"
            lag = f"{formats.plural(sink.versions, 'version')}, {formats.plural(sink.rows, 'row')}"
            yield stage.stage, sink.name, at, lag if sink.rows else "0"


def _figures(stage: StageOverview, figures: TableFigures) -> tuple[Cell, ...]:
    return (
        stage.stage,
        str(figures.l0_files),
        formats.size(figures.debt_bytes),
        _ratio(figures.read_amplification, "{:.1f}"),
        _ratio(figures.write_amplification, "{:.1f}"),
        _ratio(figures.cache_hits, "{:.0%}"),
        _ratio(figures.filter_hits, "{:.0%}"),
        _ratio(figures.commit_ms, "{:.0f} ms"),
        figures.versions,
    )


def _ratio(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)


def _partitions(each: AppOverview) -> Iterator[tuple[Cell, ...]]:
    for stage in each.stages:
        for source in () if stage.retired else stage.inputs:
            for partition, (at, end) in enumerate(zip_longest(source.offsets, source.ends or ())):
                # A partition added since the last commit has not been read at all.
                offset = at or 0
                ends, lag = ("?", None) if end is None else (str(end), max(0, end - offset))
                yield stage.stage, f"{source.topic}[{partition}]", str(offset), ends, lag


def cost(costs: Sequence[AppCost], since: str, empty: str) -> Result:
    """What each app costs, by the versions of the last `since`, and what the figures mean."""
    return Result(costs, *(_costs(costs, since) if costs else (empty,)))


def _costs(costs: Sequence[AppCost], since: str) -> Iterator[Block]:
    for each in costs:
        money, total = each.prices.currency, each.total
        rates = (">GET/h", ">PUT/h", ">LIST/h", ">DELETE/h", ">read/h", ">written/h")
        yield Title(each.app)
        yield Table.of(("stage", *rates, ">stored", f">{money}/month"), map(_cost, (*each.stages, total)))
        yield (
            f"a month: {total.requests_cost:,.2f} {money} for requests, {total.storage_cost:,.2f} for storage"
            + (f", {total.traffic_cost:,.2f} for traffic" if each.prices.read_per_gb else "")
        )
        yield ""
    yield f"by the versions of the last {since}, for an hour in which the runner is on; -: none was committed"


def _cost(row: StageCost) -> tuple[Cell, ...]:
    rates = (row.gets, row.puts, row.lists, row.deletes, formats.size(row.bytes_read), formats.size(row.bytes_written))
    shown = rates if row.counted_ms else ("-",) * len(rates)
    return (row.stage, *shown, formats.size(row.stored_bytes), f"{row.monthly_cost:,.2f}")
