"""How far apps are, what they cost, and whether their invariants hold: what `status` and `watch` show."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import instants
from ..moments.status.cost import AppCost
from ..moments.status.lag import InputLag
from ..moments.status.overview import AppOverview, StageOverview
from ..search.verdict import Verdict
from ..search.watcher import Findings, Invariant, State
from . import values
from .document import Block, Cell, TableBlock, Title
from .formats import MOST_SHOWN, count, plural, size, windows
from .shown import Result, Words, fields, result

_STATES: dict[State, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "unknown": ("cannot be asked", "cannot be asked"),
}
"""What one invariant does, and several do."""


def status(
    found: Sequence[AppOverview], *, in_detail: bool, damaged: Sequence[str], notes: Iterable[str], empty: str
) -> Result:
    """The stages of each app; with `in_detail` also its tables and the partitions of its inputs.

    `damaged` says what could not be read, `notes` what else is worth knowing, `empty` that there is nothing at all.
    """
    blocks: list[Block] = []
    for each in found:
        blocks += ["", *_overview(each), *(_details(each) if in_detail else ())]
    words = blocks[1:] if found or damaged else [empty]
    return Result(found, *words, notes=(*damaged, *notes), failed=bool(damaged))


def _overview(each: AppOverview) -> Iterator[Block]:
    title = [f"{each.app}  created {instants.when(each.created_ms)}"]
    if each.origin:
        title.append(f"clone of {each.origin.app}@{each.origin.snapshot}")
    if each.requested:
        title.append(f"snapshot asked for: {', '.join(each.requested)}")
    yield "; ".join(title)
    about = ("stage", "runs", ">version", ">epoch", "committed", ">rows read")
    yield TableBlock.of((*about, ">keys", ">SSTs", ">size", "lag"), map(_stage, each.stages))
    sinks = [(stage.stage, sink) for stage in each.stages for sink in stage.sinks]
    if sinks:
        yield ""
        rows = []
        for stage, sink in sinks:
            lag = f"{plural(sink.versions, 'version')}, {plural(sink.rows, 'row')}" if sink.rows else "0"
            rows.append((stage, sink.name, "-" if sink.place is None else f"v{sink.place}", lag))
        yield TableBlock.of(("stage", "publishes", ">up to", "lag"), rows)
    for at in each.stages:
        if at.rejected:
            waiting = f"{plural(at.rejected, 'record')}, {at.rejected_waiting:,} waiting"
            yield f"{at.stage} rejected {waiting}: slackwater rejected {each.app}"


def _stage(stage: StageOverview) -> tuple[Cell, ...]:
    table: tuple[Cell, ...] = ("-", "-", "-")
    if stage.keys is not None:
        table = (f"{'' if stage.keys_exact else '≤'}{stage.keys:,}", str(stage.ssts), size(stage.bytes))
    lag = f"called {stage.called} since" if stage.called else "; ".join(map(_lag, stage.inputs))
    return (
        stage.stage,
        "?" if stage.runner is None else "yes" if stage.runner else "no",
        f"v{stage.version}",
        str(stage.epoch),
        instants.age(stage.time_ms),
        stage.rows,
        *table,
        "retired" if stage.retired and not stage.called else lag,
    )


def _lag(source: InputLag) -> str:
    if not source.upstream:
        # A clone may read another topic than the program names.
        return f"{source.topic} {count(source.records)}"
    if source.lag == 0 or source.versions is None:
        return f"{source.name} {count(source.lag)}"
    rows = "? rows" if source.records is None else plural(source.records, "row")
    return f"{source.name} {plural(source.versions, 'version')}, {rows}"


def _details(each: AppOverview) -> Iterator[Block]:
    def figure(value: float | None, shape: str) -> str:
        return "-" if value is None else shape.format(value)

    tables = [(stage.stage, stage.figures) for stage in each.stages if stage.figures]
    if tables:
        yield ""
        amplified = ("table", ">L0", ">debt", ">read amp", ">write amp")
        rows = (
            (
                table,
                str(figures.l0_files),
                size(figures.debt_bytes),
                figure(figures.read_amplification, "{:.1f}"),
                figure(figures.write_amplification, "{:.1f}"),
                figure(figures.cache_hits, "{:.0%}"),
                figure(figures.filter_hits, "{:.0%}"),
                figure(figures.commit_ms, "{:.0f} ms"),
                figures.versions,
            )
            for table, figures in tables
        )
        yield TableBlock.of((*amplified, ">cache hits", ">filter hits", ">commit", ">of versions"), rows)
    for stage in each.stages:
        if stage.since:
            yield f"{stage.stage}: {', '.join(f'{name} since v{version}' for name, version in stage.since.items())}"
    for stage in each.stages:
        if stage.watermark_ms is not None or stage.ahead or stage.late:
            watermark = "none yet" if stage.watermark_ms is None else instants.when(stage.watermark_ms)
            ahead = f"; {plural(stage.ahead, 'row')} came too far ahead of the clock" if stage.ahead else ""
            late = f"; {plural(stage.late, 'row')} left out of the table as late" if stage.late else ""
            yield f"{stage.stage}: watermark {watermark}{ahead}{late}"
    yield ""
    partitions: list[tuple[Cell, ...]] = []
    for stage in each.stages:
        for source in () if stage.retired else stage.inputs:
            for partition, (at, end) in enumerate(zip_longest(source.offsets, source.ends or ())):
                # A partition added since the last commit has not been read at all.
                offset = at or 0
                ends, lag = ("?", None) if end is None else (str(end), max(0, end - offset))
                partitions.append((stage.stage, f"{source.topic}[{partition}]", str(offset), ends, lag))
    yield TableBlock.of(("stage", "reads", ">next offset", ">end", ">lag"), partitions)


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
            counts += (size(row.bytes_read), size(row.bytes_written))
            known = counts if row.counted_ms else ("-",) * len(rates)
            lines.append((row.stage, *known, size(row.stored_bytes), f"{row.monthly_cost:,.2f}"))
        yield TableBlock.of(("stage", *rates, ">stored", f">{money}/month"), lines)
        traffic = f", {total.traffic_cost:,.2f} for traffic" if each.prices.read_per_gb else ""
        parts = f"{total.requests_cost:,.2f} {money} for requests, {total.storage_cost:,.2f} for storage{traffic}"
        yield f"a month: {parts}"
        yield ""
    means = f"by the versions of the last {since}, for an hour in which the runner is on; -: none was committed"
    yield means if costs else empty
    return costs


def invariants_line(look: Findings) -> str:
    """One line for a look: when, where, and how many invariants are what."""
    by_state = Counter(result.state for result in look.results)
    states = ", ".join(f"{n} {words[n > 1]}" for state, words in _STATES.items() if (n := by_state[state]))
    again = [each.invariant.name for each in look.news if each.state == "holds"]
    parts = (
        instants.iso(look.cut.time_ms),
        look.ref,
        states,
        f"{', '.join(again)} again" if again else "",
        f"last good: {look.last_good}" if look.last_good and not look.is_good else "",
    )
    return "  ".join(filter(None, parts))


def failing(rows: pa.Table, invariant: Invariant, look: Findings) -> Iterator[Block]:
    """The first rows of an invariant that does not hold."""
    yield Title(f"{invariant.name} does not hold at {look.ref}")
    yield values.grid(rows, MOST_SHOWN)
    if rows.num_rows > MOST_SHOWN:
        yield f"and more; slackwater query {look.ref} {shlex.quote(invariant.where)} shows them"


def broken(verdict: Verdict, invariant: Invariant, flags: str) -> Iterator[Block]:
    """The commit that broke it; `flags` are what commands to type next need besides."""
    yield f"{verdict.stage} v{verdict.bad_version} broke {invariant.name}; before it: {verdict.good_ref or '-'}"
    if verdict.lineage.sources:
        yield f"it read {windows(map(str, verdict.lineage.sources))}"
    good = f" --good {verdict.good_ref}" if verdict.good_ref else ""
    where = shlex.quote(invariant.where)
    yield f"slackwater bisect {verdict.app}{good} --bad {verdict.bad_ref} --where {where}{flags} tells more"


def invariants_data(
    look: Findings, verdicts: Mapping[str, Verdict | None], reports: Mapping[str, Path | None]
) -> dict[str, Any]:
    """A look for machines, with what was found of each invariant that began to fail, by its name."""
    cut, invariants = look.cut, []
    for each in look.results:
        verdict, report = verdicts.get(each.invariant.name), reports.get(each.invariant.name)
        invariants.append(
            {
                "name": each.invariant.name,
                "state": each.state,
                "rows": values.for_json(each.rows)["rows"] if each.rows is not None else None,
                "error": each.error.message if each.error is not None else None,
                "first_bad": verdict.bad_ref if verdict is not None else None,
                "last_good": verdict.good_ref or None if verdict is not None else None,
                "source_windows": verdict.lineage.sources if verdict is not None else None,
                "report": report,
            }
        )
    about = {"app": cut.app, "ref": look.ref, **fields(cut, "time_ms", "versions"), "last_good": look.last_good or None}
    return about | {"invariants": invariants}
