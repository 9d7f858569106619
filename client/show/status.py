"""How far apps are, what they cost, and whether a moment is whole: what `status` and `verify` show."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...common import instants
from ...snapshot.status.archives import ArchiveStatus
from ...snapshot.status.lag import InputLag
from ...snapshot.status.overview import AppCost, AppOverview, StageOverview
from ...snapshot.verify.report import CHECKS
from ...store.versions.kinds import KINDS
from . import formats
from .document import Block, Cell, TableBlock, Title
from .formats import count, plural, size
from .shown import Result, Words, result

if TYPE_CHECKING:
    from ...snapshot.verify.verify import Report


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
    # A name that went over to it comes before one that it had.
    called = min(each.names, key=lambda name: "~" in name, default=each.app)
    title = [f"{formats.in_folder(called, each.app)}  created {instants.when(each.created_ms)}"]
    if each.origin:
        without = ", begun without state" if each.origin.empty else ", with everything of its own"
        moment = f"@{each.origin.snapshot}" if each.origin.snapshot else without
        title.append(f"clone of {each.origin.app}{moment}")
    if each.requested:
        title.append(f"snapshot asked for: {', '.join(each.requested)}")
    yield "; ".join(title)
    yield from _replica(each)
    about = ("stage", "runs", ">version", ">epoch", "committed", ">rows in last batch")
    waits = any(stage.waits_for for stage in each.stages)
    headings = (*about, ">keys", ">SSTs", ">size", "lag", *(("waits for",) if waits else ()))
    yield TableBlock.of(headings, ((*_stage(stage), stage.waits_for)[: len(headings)] for stage in each.stages))
    sinks = [(stage.stage, sink) for stage in each.stages for sink in stage.sinks]
    if sinks:
        yield ""
        rows = []
        for stage, sink in sinks:
            lag = f"{plural(sink.versions, 'version')}, {plural(sink.rows, 'row')}" if sink.rows else "0"
            rows.append((stage, sink.name, "-" if sink.place is None else f"v{sink.place}", lag))
        yield TableBlock.of(("stage", "publishes", ">up to", "lag"), rows)
    for copy in each.replicas:
        behind = f"{plural(copy.versions, 'version')} to go" if copy.versions else "all there"
        yield f"replica in {copy.root}: {behind}, seen {instants.age(copy.seen_ms)}"
        if copy.lacks:
            yield f"  it lacks something: {copy.lacks}"
    if each.archives:
        yield ""
        yield archives(each.archives)
    for at in each.stages:
        if at.rejected:
            waiting = f"{plural(at.rejected, 'record')}, {at.rejected_waiting:,} waiting"
            yield f"{at.stage} rejected {waiting}: slackwater rejected {called}"


def _replica(each: AppOverview) -> Iterator[Block]:
    """What is said of an app that is a copy, was one, or was left behind."""
    found = each.replica
    if found is None:
        return
    if found.state == "copy":
        seen = f"it lacked nothing {instants.age(each.complete_ms)}" if each.complete_ms else "not whole yet"
        yield f"replica of {found.root}; {seen}"
    elif found.state == "left":
        yield f"left behind: recovered {instants.when(found.time_ms)} by {found.by}, and runs in {found.root} since"
    else:
        yield f"recovered {instants.when(found.time_ms)} by {found.by} from the replica of {found.root}"


def archives(found: Sequence[ArchiveStatus]) -> TableBlock:
    """The input archives of an app."""
    headings = ("input archive", ">records", ">objects", ">size", "since", ">behind", ">gaps")
    return TableBlock.of(
        headings,
        (
            (
                one.topic if one.life == 1 else f"{one.topic}, made anew ({one.life})",
                one.records,
                one.objects,
                size(one.bytes),
                instants.iso(one.since_ms) if one.since_ms else "-",
                one.behind,
                len(one.gaps),
            )
            for one in found
        ),
    )


def _stage(stage: StageOverview) -> tuple[Cell, ...]:
    table: tuple[Cell, ...] = ("-", "-", "-")
    if stage.keys is not None:
        table = (f"{'' if stage.keys_exact else '≤'}{stage.keys:,}", str(stage.ssts), size(stage.bytes))
    lag = f"called {stage.called} since" if stage.called else "; ".join(map(_lag, stage.inputs))
    if stage.attached is not None:
        behind, at = stage.batches_behind, stage.attached.next_batch - 1
        lag = f"at batch {at}" if behind is None else f"{behind:,} batch{'' if behind == 1 else 'es'}"
    return (
        stage.stage,
        "?" if stage.runner is None else "yes" if stage.runner else "no",
        f"v{stage.version}",
        str(stage.epoch),
        instants.age(stage.time_ms),
        _rows(stage),
        *table,
        "retired" if stage.retired and not stage.called else lag,
    )


def _rows(stage: StageOverview) -> Cell:
    if stage.rows is None:
        return "-"
    if stage.attached is not None:
        return formats.at_most(stage.rows)
    return stage.rows if stage.rows or KINDS[stage.kind].reads_records else "-"


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


def verification(report: "Report") -> Result:
    """Whether a moment is whole."""
    ledger = [asdict(entry) | {"difference": entry.difference} for entry in report.ledger]
    data = {"consistent": report.consistent, **asdict(report), "ledger": ledger}
    return Result(data, *verified(report), failed=not report.consistent)


def verified(report: "Report") -> Iterator[Block]:
    """The ledger of each channel, and what was checked."""
    yield Title(report.ref)
    # Most apps never lose a record: a column for it is there only where one did.
    lossy = any(any(entry.lost) for entry in report.ledger)
    if report.ledger:
        counted = (">sent", ">consumed", *((">lost",) if lossy else ()), ">in flight", ">difference", "counted in")
        yield TableBlock.of(("channel", "from", "to", "partition", *counted), _ledger(report, lossy=lossy))
    yield ""
    accepted = {"channels": "sent = consumed + lost + in flight"} if lossy else {}
    rows = []
    for each in report.checks:
        noun, law = CHECKS[each.check]
        law = accepted.get(each.check, law)
        rows.append((each.check, plural(each.checked, noun), law, str(each.differences)))
    yield TableBlock.of(("", ">checked", "", ">differences"), rows)
    yield ""
    yield from report.not_reread
    yield from (f"not looked at: {each}" for each in report.not_looked_at)
    for one in report.archives:
        yield f"the input archive of {one.topic} has {plural(one.records, 'record')}, {size(one.bytes)}"
        for gap in one.gaps:
            yield f"it has a gap, {one.topic}{gap}: what is read there, such as a replay, ends with an error"
    if report.consistent:
        yield f"consistent ({plural(report.requests, 'request')}, {size(report.bytes_read)} read)"
        return
    yield f"not consistent: {report.differences[0].message}"
    if more := len(report.differences) - 1:
        yield f"and {plural(more, 'more difference')}; --json has them all"


def _ledger(report: "Report", *, lossy: bool) -> Iterator[tuple[Cell, ...]]:
    """One line for each channel, and one for each partition where it does not add up."""
    for entry in report.ledger:
        counted, where = entry.in_flight, entry.in_flight.where
        where = f"{where} (not re-read)" if where and counted.not_reread else where or "not re-read"
        ends = (f"{entry.sender}@v{entry.sender_version}", f"{entry.receiver}@v{entry.receiver_version}")
        sent, consumed = (sum(each) if each else None for each in (entry.sent, entry.consumed))
        lost = (sum(entry.lost),) if lossy else ()
        yield (entry.channel, *ends, "all", sent, consumed, *lost, counted.rows, entry.difference, where)
        for partition, (*passed, gone, rows, difference) in enumerate(entry.partitions):
            if difference:
                yield ("", "", "", str(partition), *passed, *((gone,) if lossy else ()), rows, difference, "")
