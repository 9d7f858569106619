"""Output of `status`, `status --cost` and `verify`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...common import instants
from ...snapshot.status.cost import AppCost
from ...snapshot.status.overview import AppOverview, ArchiveStatus, InputLag, StageOverview
from ...snapshot.verify.report import CHECKS
from ...store.versions.keys import is_source
from ...store.versions.kinds import KINDS
from . import formats
from .document import Block, Cell, TableBlock, Title
from .formats import count, plural, size
from .shown import BlockGenerator, Result, result_from_blocks

if TYPE_CHECKING:
    from ...snapshot.verify.verify import Report


def status_result(
    overviews: Sequence[AppOverview], *, in_detail: bool, damaged: Sequence[str], notes: Iterable[str], empty: str
) -> Result:
    """Return the result of `status`: the stages of each app; with `in_detail`, also tables and input partitions.

    `damaged` has the errors of unreadable apps, `notes` has further lines, and `empty` is the line for an empty store.
    """
    blocks: list[Block] = []
    for overview in overviews:
        blocks += ["", *_overview(overview), *(_details(overview) if in_detail else ())]
    shown_blocks = blocks[1:] if overviews or damaged else [empty]
    return Result(overviews, *shown_blocks, notes=(*damaged, *notes), failed=bool(damaged))


def _overview(app: AppOverview) -> Iterator[Block]:
    # Prefer a name that was taken over by a promotion to a name that was given away.
    called = min(app.names, key=lambda name: "~" in name, default=app.app)
    title = [f"{formats.name_with_folder(called, app.app)}  created {instants.format_with_age(app.created_ms)}"]
    if app.origin:
        without = ", begun without state" if app.origin.is_empty else ", a full copy"
        moment = f"@{app.origin.snapshot}" if app.origin.snapshot else without
        title.append(f"clone of {app.origin.app}{moment}")
    if app.requested:
        title.append(f"snapshot requested: {', '.join(app.requested)}")
    yield "; ".join(title)
    yield from _replica(app)
    about = ("stage", "runs", ">version", ">epoch", "committed", ">rows in last batch")
    waits = any(stage.waits_for for stage in app.stages)
    headings = (*about, ">keys", ">SSTs", ">size", "lag", *(("waits for",) if waits else ()))
    yield TableBlock.from_rows(headings, ((*_stage(stage), stage.waits_for)[: len(headings)] for stage in app.stages))
    sinks = [(stage.stage, sink) for stage in app.stages for sink in stage.sinks]
    if sinks:
        yield ""
        rows = []
        for stage, sink in sinks:
            lag = f"{plural(sink.versions, 'version')}, {plural(sink.rows, 'row')}" if sink.rows else "0"
            rows.append((stage, sink.name, "-" if sink.place is None else f"v{sink.place}", lag))
        yield TableBlock.from_rows(("stage", "publishes", ">up to", "lag"), rows)
    for replica in app.replicas:
        backlog = f"{plural(replica.versions, 'version')} behind" if replica.versions else "up to date"
        yield f"replica in {replica.root}: {backlog}, seen {instants.format_age(replica.seen_ms)}"
        if replica.lacks:
            yield f"  incomplete: {replica.lacks}"
    if app.archives:
        yield ""
        yield archives_table(app.archives)
    for at in app.stages:
        if at.rejected:
            waiting = f"{plural(at.rejected, 'record')}, {at.rejected_waiting:,} waiting"
            yield f"{at.stage} rejected {waiting}: slackwater rejected {called}"


def _replica(app: AppOverview) -> Iterator[Block]:
    link = app.replica
    if link is None:
        return
    if link.state == "copy":
        seen = f"complete as of {instants.format_age(app.complete_ms)}" if app.complete_ms else "not complete yet"
        yield f"replica of {link.root}; {seen}"
    elif link.state == "left":
        yield (
            f"replaced: it was recovered {instants.format_with_age(link.time_ms)} by {link.by}, and now runs in "
            f"{link.root}"
        )
    else:
        yield f"recovered {instants.format_with_age(link.time_ms)} by {link.by} from the replica of {link.root}"


def archives_table(statuses: Sequence[ArchiveStatus]) -> TableBlock:
    headings = ("input archive", ">records", ">objects", ">size", "since", ">behind", ">gaps")
    return TableBlock.from_rows(
        headings,
        (
            (
                archive.topic if archive.life == 1 else f"{archive.topic}, recreated ({archive.life})",
                archive.records,
                archive.objects,
                size(archive.bytes),
                instants.format_iso(archive.since_ms) if archive.since_ms else "-",
                archive.behind,
                len(archive.gaps),
            )
            for archive in statuses
        ),
    )


def _stage(stage: StageOverview) -> tuple[Cell, ...]:
    table: tuple[Cell, ...] = ("-", "-", "-")
    if stage.keys is not None:
        table = (f"{'' if stage.keys_exact else '≤'}{stage.keys:,}", str(stage.ssts), size(stage.bytes))
    lags = (_lag(read, is_live=bool(stage.runner)) for read in stage.inputs)
    lag = f"now called {stage.called}" if stage.called else "; ".join(lags)
    if stage.attached is not None and not stage.attached.follows_topic:
        batches_behind, at = stage.batches_behind, stage.attached.next_batch - 1
        lag = (
            f"at batch {at}"
            if batches_behind is None
            else f"{batches_behind:,} batch{'' if batches_behind == 1 else 'es'}"
        )
    return (
        stage.stage,
        "?" if stage.runner is None else "yes" if stage.runner else "no",
        f"v{stage.version}",
        str(stage.epoch),
        instants.format_age(stage.time_ms),
        _rows(stage),
        *table,
        "retired" if stage.retired and not stage.called else lag,
    )


def _rows(stage: StageOverview) -> Cell:
    if stage.rows is None:
        return "-"
    if stage.attached is not None:
        return formats.upper_bound(stage.rows)
    return stage.rows if stage.rows or KINDS[stage.kind].reads_records else "-"


def _lag(source: InputLag, *, is_live: bool) -> str:
    if not source.upstream:
        if is_source(source.topic) and not is_live:
            # Only a runner looks for new files.
            return f"{source.topic} {count(source.records)} or more"
        # A clone may read another topic than the program names.
        return f"{source.topic} {count(source.records)}"
    if source.lag == 0 or source.versions is None:
        return f"{source.name} {count(source.lag)}"
    rows = "? rows" if source.records is None else plural(source.records, "row")
    return f"{source.name} {plural(source.versions, 'version')}, {rows}"


def _details(app: AppOverview) -> Iterator[Block]:
    def figure(value: float | None, shape: str) -> str:
        return "-" if value is None else shape.format(value)

    tables = [(stage.stage, stage.figures) for stage in app.stages if stage.figures]
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
        yield TableBlock.from_rows((*amplified, ">cache hits", ">filter hits", ">commit", ">of versions"), rows)
    yield from _event_times(app)
    yield ""
    yield _offsets(app)


def _event_times(app: AppOverview) -> Iterator[Block]:
    for stage in app.stages:
        if stage.since:
            yield f"{stage.stage}: {', '.join(f'{name} since v{version}' for name, version in stage.since.items())}"
    for stage in app.stages:
        if stage.watermark_ms is not None or stage.ahead or stage.late:
            watermark = "none yet" if stage.watermark_ms is None else instants.format_with_age(stage.watermark_ms)
            ahead = f"; {plural(stage.ahead, 'row')} dated too far in the future" if stage.ahead else ""
            late = f"; {plural(stage.late, 'late row')} not added to the table" if stage.late else ""
            yield f"{stage.stage}: watermark {watermark}{ahead}{late}"


def _offsets(app: AppOverview) -> Block:
    partitions: list[tuple[Cell, ...]] = []
    for stage in app.stages:
        for source in () if stage.retired else stage.inputs:
            for partition, (at, end) in enumerate(zip_longest(source.offsets, source.ends or ())):
                # A partition added since the last commit has not been read at all.
                offset = at or 0
                ends, lag = ("?", None) if end is None else (str(end), max(0, end - offset))
                partitions.append((stage.stage, f"{source.topic}[{partition}]", str(offset), ends, lag))
    return TableBlock.from_rows(("stage", "reads", ">next offset", ">end", ">lag"), partitions)


@result_from_blocks
def cost_result(costs: Sequence[AppCost], since: str, empty: str) -> BlockGenerator:
    """Return the result of `status --cost`, measured over the last `since`; `empty` is the line for an empty store."""
    for app_cost in costs:
        money, total = app_cost.prices.currency, app_cost.total
        rates = (">GET/h", ">PUT/h", ">LIST/h", ">DELETE/h", ">read/h", ">written/h")
        yield Title(app_cost.app)
        lines = []
        for row in (*app_cost.stages, total):
            counts: tuple[Cell, ...] = (row.gets, row.puts, row.lists, row.deletes)
            counts += (size(row.bytes_read), size(row.bytes_written))
            rates_text = counts if row.counted_ms else ("-",) * len(rates)
            lines.append((row.stage, *rates_text, size(row.stored_bytes), f"{row.monthly_cost:,.2f}"))
        yield TableBlock.from_rows(("stage", *rates, ">stored", f">{money}/month"), lines)
        traffic = f", {total.traffic_cost:,.2f} for traffic" if app_cost.prices.read_per_gb else ""
        parts = f"{total.requests_cost:,.2f} {money} for requests, {total.storage_cost:,.2f} for storage{traffic}"
        yield f"per month: {parts}"
        yield ""
    explanation = (
        f"measured over the versions of the last {since}, per hour of a running app; -: no commit in that time"
    )
    yield explanation if costs else empty
    return costs


def verification_result(report: "Report") -> Result:
    ledger = [asdict(entry) | {"difference": entry.difference} for entry in report.ledger]
    data = {"consistent": report.consistent, **asdict(report), "ledger": ledger}
    return Result(data, *verification_blocks(report), failed=not report.consistent)


def verification_blocks(report: "Report") -> Iterator[Block]:
    """Yield the record counts of each channel, and the outcome of each check."""
    yield Title(report.ref)
    # Most apps never lose a record: show the column only if one was lost.
    lossy = any(any(entry.lost) for entry in report.ledger)
    if report.ledger:
        counted = (">sent", ">consumed", *((">lost",) if lossy else ()), ">in flight", ">difference", "counted in")
        yield TableBlock.from_rows(("channel", "from", "to", "partition", *counted), _ledger(report, lossy=lossy))
    yield ""
    accepted = {"channels": "sent = consumed + lost + in flight"} if lossy else {}
    rows = []
    for check in report.checks:
        noun, law = CHECKS[check.check]
        law = accepted.get(check.check, law)
        rows.append((check.check, plural(check.checked, noun), law, str(check.differences)))
    yield TableBlock.from_rows(("", ">checked", "", ">differences"), rows)
    yield ""
    yield from report.not_reread
    yield from (f"not checked: {skipped}" for skipped in report.not_looked_at)
    for archive in report.archives:
        yield f"the input archive of {archive.topic} has {plural(archive.records, 'record')}, {size(archive.bytes)}"
        for gap in archive.gaps:
            yield f"it has a gap, {archive.topic}{gap}: reading it, for example in a replay, fails"
    if report.consistent:
        yield f"consistent ({plural(report.requests, 'request')}, {size(report.bytes_read)} read)"
        return
    yield f"not consistent: {report.differences[0].message}"
    if more := len(report.differences) - 1:
        yield f"and {plural(more, 'more difference')}; --json has them all"


def _ledger(report: "Report", *, lossy: bool) -> Iterator[tuple[Cell, ...]]:
    for entry in report.ledger:
        counted, where = entry.in_flight, entry.in_flight.where
        where = f"{where} (not re-read)" if where and counted.not_reread else where or "not re-read"
        ends = (f"{entry.sender}@v{entry.sender_version}", f"{entry.receiver}@v{entry.receiver_version}")
        sent, consumed = (sum(counts) if counts else None for counts in (entry.sent, entry.consumed))
        lost = (sum(entry.lost),) if lossy else ()
        yield (entry.channel, *ends, "all", sent, consumed, *lost, counted.rows, entry.difference, where)
        for partition, (*passed, gone, rows, difference) in enumerate(entry.partitions):
            if difference:
                yield ("", "", "", str(partition), *passed, *((gone,) if lossy else ()), rows, difference, "")
