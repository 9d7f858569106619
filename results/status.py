"""How far apps are, and what they cost."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from .. import instants
from ..moments.status.cost import AppCost
from ..moments.status.lag import InputLag, SinkLag
from ..moments.status.overview import AppOverview, StageOverview, TableFigures
from . import formats
from .document import Block, Cell, Table, Title
from .shown import Result, Words, result


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
        title = [f"{each.app}  created {instants.when(each.created_ms)}"]
        if each.origin:
            title.append(f"clone of {each.origin.app}@{each.origin.snapshot}")
        if each.requested:
            title.append(f"snapshot asked for: {', '.join(each.requested)}")
        yield "; ".join(title)
        yield Table.each(each.stages, _COLUMNS)
        if any(stage.sinks for stage in each.stages):
            yield ""
            yield Table.each([(stage.stage, sink) for stage in each.stages for sink in stage.sinks], _SINKS)
        for stage in each.stages:
            if stage.rejected:
                count, waiting = formats.plural(stage.rejected, "record"), f"{stage.rejected_waiting:,} waiting"
                yield f"{stage.stage} rejected {count}, {waiting}: slackwater rejected {each.app}"
        if in_detail:
            yield from _details(each)


def _details(each: AppOverview) -> Iterator[Block]:
    if any(stage.figures for stage in each.stages):
        yield ""
        yield Table.each([(stage.stage, stage.figures) for stage in each.stages if stage.figures], _FIGURES)
    for stage in each.stages:
        if stage.since:
            yield f"{stage.stage}: {', '.join(f'{name} since v{version}' for name, version in stage.since.items())}"
    for stage in each.stages:
        if stage.watermark_ms is not None or stage.ahead or stage.late:
            watermark = "none yet" if stage.watermark_ms is None else instants.when(stage.watermark_ms)
            ahead = f"; {formats.plural(stage.ahead, 'row')} came too far ahead of the clock" if stage.ahead else ""
            late = f"; {formats.plural(stage.late, 'row')} left out of the table as late" if stage.late else ""
            yield f"{stage.stage}: watermark {watermark}{ahead}{late}"
    yield ""
    yield Table.of(("stage", "reads", ">next offset", ">end", ">lag"), _partitions(each))


def _lags(stage: StageOverview) -> str:
    if stage.called:
        return f"called {stage.called} since"
    return "retired" if stage.retired else "; ".join(map(_lag, stage.inputs))


def _lag(source: InputLag) -> str:
    if not source.upstream:
        # A clone may read another topic than the program names.
        return f"{source.topic} {formats.count(source.records)}"
    if source.lag == 0 or source.versions is None:
        return f"{source.name} {formats.count(source.lag)}"
    rows = "? rows" if source.records is None else formats.plural(source.records, "row")
    return f"{source.name} {formats.plural(source.versions, 'version')}, {rows}"


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


@result
def cost(costs: Sequence[AppCost], since: str, empty: str) -> Words:
    """What each app costs, by the versions of the last `since`, and what the figures mean."""
    for each in costs:
        money, total = each.prices.currency, each.total
        rates = (">GET/h", ">PUT/h", ">LIST/h", ">DELETE/h", ">read/h", ">written/h")
        yield Title(each.app)
        lines = []
        for row in (*each.stages, total):
            counts: tuple[Cell, ...] = (row.gets, row.puts, row.lists, row.deletes)
            counts += (formats.size(row.bytes_read), formats.size(row.bytes_written))
            known = counts if row.counted_ms else ("-",) * len(rates)
            lines.append((row.stage, *known, formats.size(row.stored_bytes), f"{row.monthly_cost:,.2f}"))
        yield Table.of(("stage", *rates, ">stored", f">{money}/month"), lines)
        yield (
            f"a month: {total.requests_cost:,.2f} {money} for requests, {total.storage_cost:,.2f} for storage"
            + (f", {total.traffic_cost:,.2f} for traffic" if each.prices.read_per_gb else "")
        )
        yield ""
    means = f"by the versions of the last {since}, for an hour in which the runner is on; -: none was committed"
    yield means if costs else empty
    return costs


_COLUMNS: dict[str, Callable[[StageOverview], Cell]] = {
    "stage": lambda stage: stage.stage,
    "runs": lambda stage: "?" if stage.runner is None else "yes" if stage.runner else "no",
    ">version": lambda stage: f"v{stage.version}",
    ">epoch": lambda stage: str(stage.epoch),
    "committed": lambda stage: instants.age(stage.time_ms),
    ">rows read": lambda stage: stage.rows,
    ">keys": lambda stage: (
        "-" if stage.keys is None else f"{'' if stage.keys_exact else '≤'}{formats.count(stage.keys)}"
    ),
    ">SSTs": lambda stage: "-" if stage.keys is None else str(stage.ssts),
    ">size": lambda stage: "-" if stage.keys is None else formats.size(stage.bytes),
    "lag": _lags,
}
"""What is shown of a stage."""
_SINKS: dict[str, Callable[[tuple[str, SinkLag]], Cell]] = {
    "stage": lambda each: each[0],
    "publishes": lambda each: each[1].name,
    ">up to": lambda each: "-" if each[1].place is None else f"v{each[1].place}",
    "lag": lambda each: (
        f"{formats.plural(each[1].versions, 'version')}, {formats.plural(each[1].rows, 'row')}" if each[1].rows else "0"
    ),
}
"""What is shown of its sinks."""
_FIGURES: dict[str, Callable[[tuple[str, TableFigures]], Cell]] = {
    "table": lambda each: each[0],
    ">L0": lambda each: str(each[1].l0_files),
    ">debt": lambda each: formats.size(each[1].debt_bytes),
    ">read amp": lambda each: _ratio(each[1].read_amplification, "{:.1f}"),
    ">write amp": lambda each: _ratio(each[1].write_amplification, "{:.1f}"),
    ">cache hits": lambda each: _ratio(each[1].cache_hits, "{:.0%}"),
    ">filter hits": lambda each: _ratio(each[1].filter_hits, "{:.0%}"),
    ">commit": lambda each: _ratio(each[1].commit_ms, "{:.0f} ms"),
    ">of versions": lambda each: each[1].versions,
}
"""What is shown of its table."""
