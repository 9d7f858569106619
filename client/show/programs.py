"""Output of verbs that create or replay state: migrate, init, replay, check, attach, adopt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common import instants
from ...operations.attach.protocol import FollowedCheckpoint
from ...operations.attach.tail import AttachPlan, FollowedVersion
from ...operations.exchange.initialise import Initialised
from ...operations.from_spark.adopt.adoption import AdoptedBatch, AdoptionResult
from ...pipeline.listener import BatchReport
from ...snapshot.change.migrate import Migrated, describe_stage_change
from ...snapshot.query.log import describe_imported_batches
from ...store.sst.arrow_types import python_values
from ...store.versions.manifest import Column, Manifest, Table, is_internal
from . import formats, values
from .document import Block, Cell, NextCommand, TableBlock, Title
from .formats import MAX_SHOWN, plural
from .report import Mask
from .shown import AlreadyDone, BlockGenerator, Result, attributes, operation_result, result_from_blocks

if TYPE_CHECKING:
    from ...operations.debugging.check.check import CheckedVersion, Dependence, PassedOver, Reason
    from ...operations.debugging.replay.compare import ChannelComparison, Comparison, RowDifferences
    from ...operations.from_spark.adopt.adopting import AdoptionPlan
    from ...operations.from_spark.adopt.shadow import ShadowBatch


@operation_result
def migration_result(done: Migrated, file: str, *, dry_run: bool) -> BlockGenerator:
    app = done.plan.app
    if done.finished:
        yield f"finished the interrupted migration {done.finished}"
    if not done.plan.changes:
        yield f"{app} matches {file}: nothing to migrate"
    for change in done.plan.changes:
        version = done.versions.get(change.stage)
        yield change.stage + (f"  v{version}" if version else f"  v{change.version} now" if change.version else "")
        yield from (f"  {line}" for line in describe_stage_change(change))
    if done.plan.changes and not dry_run:
        snapshot = f"{app}@{done.snapshot}"
        yield f"migration {done.number} of {app} is done: {plural(len(done.versions), 'commit')}, no data rewritten"
        yield f"previous state: {snapshot}"
        yield "run it: ", NextCommand(f"slackwater run {file} --app {app}")
        clone = NextCommand(f"slackwater clone {snapshot} {app}-before")
        yield "to run the old program beside it: ", clone, f", then run it with --app {app}-before"
    data = attributes(done.plan, "app", "changes", versions=done.versions)
    data |= {"migration": done.number or None, "snapshot": done.snapshot or None, "finished": done.finished or None}
    return data


@operation_result
def init_result(done: Initialised, program: str, *, dry_run: bool) -> BlockGenerator:
    where = f"{done.app}/{done.stage}"
    contents = f"{plural(done.rows, 'row')} in {plural(done.ssts, 'SST')}, {formats.size(done.bytes)}"
    if done.already:
        yield AlreadyDone(f"{where} v{done.version} has these {contents}")
    else:
        yield f"{f'would begin {where}' if dry_run else f'{where} begins'} with v{done.version}: {contents}"
    yield f"it continues at {formats.format_offsets(done.offsets.items())}"
    if done.others:
        starts = formats.format_offsets(done.starts.items())
        begins = f"at {starts}" if starts else "at the program's starting offsets"
        yield f"{', '.join(done.others)} {'begins' if len(done.others) == 1 else 'begin'} without rows, {begins}"
    if not dry_run:
        yield "to run it: ", NextCommand(f"slackwater run {program} --app {done.app}")
    return asdict(done)


def replay_result(comparison: Comparison, bundle: Path | None, test: Path | None) -> Result:
    """Return the result of comparing a replay with the committed batch; `bundle` and `test` are written files.

    JSON has all keys and rows that differ; bytes are hexadecimal.
    """
    keys = (
        {"key": change.key, "committed": change.before, "replayed": change.after}
        for change in comparison.different or ()
    )
    data = {
        **attributes(comparison, "app", "stage", "version", "time_ms", "same", "hidden"),
        "read": [{"topic": topic, "records": count} for topic, count in comparison.read],
        "keys_committed": comparison.committed.num_rows if comparison.committed is not None else None,
        "keys_replayed": comparison.num_replayed if comparison.committed is not None else None,
        "different": values.encode_array(keys),
        "channels": list(map(_output_data, comparison.channels)),
        "parts": list(map(_output_data, comparison.parts)),
        "bundle": bundle,
        "test": test,
    }
    return Result(data, *_replayed(comparison, bundle, test), failed=not comparison.same)


def _output_data(output: ChannelComparison) -> dict[str, Any]:
    return {
        "name": output.name,
        "committed": output.committed.rows.num_rows if output.committed.rows is not None else None,
        "unknown": output.committed.unknown_reason or None,
        "replayed": output.replayed.num_rows,
        "missing": values.table_data(output.missing)["rows"],
        "added": values.table_data(output.added)["rows"],
    }


def _replayed(comparison: Comparison, bundle: Path | None, test: Path | None) -> Iterator[Block]:
    table_rows: list[tuple[Cell, ...]] = []
    if comparison.committed is not None:
        keys = len(comparison.different or ()) + comparison.hidden
        table_rows.append((comparison.stage, "keys", comparison.committed.num_rows, comparison.num_replayed, keys))
    labels = [(parts, "parts") for parts in comparison.parts]
    labels += [(channel, "rows sent") for channel in comparison.channels]
    for output, label in labels:
        sent, replayed = output.committed.rows, output.replayed.num_rows
        different = None if sent is None else output.missing.num_rows + output.added.num_rows
        table_rows.append((output.name, label, None if sent is None else sent.num_rows, replayed, different))
    yield Title(f"the replay of {comparison.ref} {'equals' if comparison.same else 'differs from'} the commit")
    yield TableBlock.from_rows(("it read", ">records"), comparison.read)
    yield ""
    yield TableBlock.from_rows(("it wrote", "", ">committed", ">replayed", ">different"), table_rows)
    if comparison.different:
        yield ""
        yield values.key_changes_table(comparison.different, "committed", "replayed")
        yield from _more(len(comparison.different), "key")
    if comparison.hidden:
        yield ""
        unshown = "internal columns, or an unchanged row that only the commit or only the replay wrote"
        yield f"{plural(comparison.hidden, 'key')} differ only in {unshown}"
    for channel in comparison.channels:
        if channel.committed.rows is None:
            yield ""
            yield f"rows sent on {channel.name} are not compared: {channel.committed.unknown_reason}"
    verbs = [(channel, "sent") for channel in comparison.channels] + [(parts, "wrote") for parts in comparison.parts]
    for output, verb in verbs:
        for rows, who in ((output.missing, "commit"), (output.added, "replay")):
            if rows.num_rows:
                yield ""
                yield f"rows of {output.name} that only the {who} {verb}:"
                yield values.grid(rows, formats.MAX_SHOWN)
                yield from _more(rows.num_rows, "row")
    if bundle is not None:
        yield ""
        yield f"wrote {bundle} ({formats.size(bundle.stat().st_size)}); to replay it anywhere:"
        yield f"  slackwater replay {bundle}"
    if test is not None:
        yield f"{test} expects the committed rows; correct the values that are wrong"


def _more(count: int, noun: str) -> Iterator[Block]:
    if count > formats.MAX_SHOWN:
        yield f"and {count - formats.MAX_SHOWN:,} more; --json gives each {noun}"


_REASONS: Mapping[Reason, tuple[str, str]] = {
    "random": (
        "randomness",
        "it differs although nothing else changed: a random number, an id, state that a module keeps between calls, or "
        "a clock that cannot be stopped",
    ),
    "process": (
        "the Python process",
        "it differs only when its Python functions run in another process: a process id, an object's id() or address, "
        "state that a module keeps between calls; compute each row from its record alone",
    ),
    "clock": ("the clock", "it differs only when it runs at another time: take times from the records"),
    "order": (
        "the order of records",
        "it differs only when records come in another order: order them (order_by= or by=) by a column of the records "
        "in which no two records of a key are equal",
    ),
    "batches": (
        "batch boundaries",
        "it differs only when the same records come in more batches: the result for a record must depend on the "
        "stored state, not on other records of its batch",
    ),
    "partitions": (
        "partitions",
        "it differs only when the same records are in other partitions: the result for a key must not depend on "
        "other keys of its partition",
    ),
    "outside": (
        "something that has changed since",
        "each replay gives the same result, but not the committed one: it reads a file, a table, a setting or a clock "
        "at its start, or another program ran",
    ),
}


def check_result(file: str, app: str, done: Sequence[CheckedVersion | PassedOver], *, show_values: bool) -> Result:
    """Return the result of a determinism check; keys and rows are hidden unless `show_values` is set."""
    # Imported here because it needs Spark, and servers without Spark import this module.
    from ...operations.debugging.check.check import CheckedVersion, PassedOver

    ran = [version for version in done if isinstance(version, CheckedVersion)]
    passed = [version for version in done if isinstance(version, PassedOver)]
    dependences = [dependence for version in ran for dependence in version.found]
    mask = Mask(show_values)
    data = {
        "app": app,
        "program": file,
        "same": not dependences and bool(ran),
        "versions": [
            attributes(version, "stage", "version", "records", "runs", different=bool(version.found)) for version in ran
        ],
        "passed_over": [attributes(version, "ref", "why") for version in passed],
        "found": [_dependence(dependence, mask) for dependence in dependences],
    }
    return Result(data, *_checked(file, app, ran, passed, dependences, mask), failed=bool(dependences) or not ran)


def _dependence(dependence: Dependence, mask: Mask) -> dict[str, Any]:
    keys = dependence.different.keys

    def row(values_by_column: Mapping[str, object] | None) -> object:
        if values_by_column is None or mask.show:
            return values_by_column
        return {name: mask.value(value).text for name, value in values_by_column.items()}

    changes = (
        {"key": row(change.key), "first": row(change.before), "second": row(change.after)}
        for change in (keys.head(MAX_SHOWN) if keys is not None else ())
    )
    return attributes(dependence, "stage", "version", "reason", "runs", "plan") | {
        "num_keys": len(keys) if keys is not None else 0,
        "keys": values.encode_array(changes),
        "sent": _counts(dependence.different.sent),
        "parts": _counts(dependence.different.parts),
        "error": mask.reason(dependence.different.failed) or None,
    }


def _counts(different: Mapping[str, RowDifferences]) -> dict[str, dict[str, int]]:
    return {name: {"first": rows.missing.num_rows, "second": rows.added.num_rows} for name, rows in different.items()}


def _checked(
    file: str,
    app: str,
    ran: Sequence[CheckedVersion],
    passed: Sequence[PassedOver],
    dependences: Sequence[Dependence],
    mask: Mask,
) -> Iterator[Block]:
    stages = {version.stage: [other for other in ran if other.stage == version.stage] for version in ran}
    different = dict.fromkeys(dependence.stage for dependence in dependences)
    if not ran:
        yield Title(f"no version of {app} could be replayed, so it is unknown whether {file} is deterministic")
    elif not dependences:
        shown = f"as far as {plural(len(ran), 'version')} of {plural(len(stages), 'stage')} show"
        yield Title(f"{file} is deterministic, {shown}")
    else:
        yield Title(f"{file} is nondeterministic: {', '.join(different)}")
    if ran:
        rows = (
            (
                stage,
                ", ".join(f"v{version.version}" for version in reversed(versions)),
                sum(version.records for version in versions),
                ", ".join(
                    dict.fromkeys(
                        _REASONS[dependence.reason][0] for version in versions for dependence in version.found
                    )
                )
                or "-",
            )
            for stage, versions in stages.items()
        )
        yield TableBlock.from_rows(("stage", "versions", ">records", "depends on"), rows)
        ways = ", ".join(dict.fromkeys(title for version in ran for title in version.runs))
        yield f"replayed as they were, and compared with: {ways}"
    ordered = sorted(
        dependences,
        key=lambda dependence: (list(different).index(dependence.stage), list(_REASONS).index(dependence.reason)),
    )
    for _, of_reason in groupby(ordered, key=lambda dependence: (dependence.stage, dependence.reason)):
        yield from _finding(tuple(of_reason), mask)
    yield from _passed_over(passed)


def _finding(dependences: Sequence[Dependence], mask: Mask) -> Iterator[Block]:
    # Show the version with the most differing keys.
    main = max(dependences, key=lambda dependence: len(dependence.different.keys or ()))
    cause, why = _REASONS[main.reason]
    first, second = main.runs
    yield ""
    yield Title(f"{main.stage} depends on {cause}")
    versions = ", ".join(f"v{number}" for number in sorted(dependence.version for dependence in dependences))
    yield f"{versions}: {why}"
    plan = (*main.plan.random, *(main.plan.clocks if main.reason == "clock" else ()))
    if plan:
        yield f"its plan has {', '.join(f'{name}()' for name in plan)}"
    if keys := main.different.keys:
        differ = "differs" if len(keys) == 1 else "differ"
        yield f"v{main.version}, {first} and {second}: {plural(len(keys), 'key')} {differ}"
        yield values.key_changes_table(keys, first, second, mask.value)
        if len(keys) > MAX_SHOWN:
            yield f"and {len(keys) - MAX_SHOWN:,} more"
    differences = [("sent on", *item) for item in main.different.sent.items()]
    for what, name, rows in (*differences, *(("rows of", *item) for item in main.different.parts.items())):
        counts = (
            f"{plural(side_rows.num_rows, 'row')} only {title}"
            for side_rows, title in ((rows.missing, first), (rows.added, second))
            if side_rows.num_rows
        )
        yield f"v{main.version}, {what} {name}: {', '.join(counts)}"
    if main.different.failed:
        yield f"v{main.version} fails {second}: {mask.reason(main.different.failed)}"


def _passed_over(passed: Iterable[PassedOver]) -> Iterator[Block]:
    by_reason: dict[str, list[str]] = {}
    for version in passed:
        by_reason.setdefault(version.why, []).append(version.ref)
    for why, refs in by_reason.items():
        yield ""
        yield f"skipped: {', '.join(refs)}: {why}"


def commit_line(commit: BatchReport) -> str:
    rate = commit.rows_in / commit.seconds if commit.seconds else 0
    parts = (
        instants.format_iso(commit.time_ms),
        f"{commit.stage} v{commit.version}",
        plural(commit.rows_in, "row"),
        f"{plural(commit.keys, 'key')} written" if commit.keys else "",
        f"{formats.count(commit.rows_out)} out" if commit.rows_out else "",
        f"{commit.seconds:.1f} s ({rate:,.0f}/s)",
        f"held back {commit.stall_seconds:.1f} s by {commit.state.l0_files} L0 SSTs" if commit.stall_seconds else "",
        f"{commit.unflushed} unflushed" if commit.unflushed else "",
        formats.join_ranges(commit.windows),
        f"snapshot {', '.join(commit.snapshots)}" if commit.snapshots else "",
    )
    return "  ".join(filter(None, parts))


@result_from_blocks
def attach_plan_result(plan: AttachPlan, source: FollowedCheckpoint) -> BlockGenerator:
    what = f"topic {source.query}" if source.formats else f"query {source.query} of {source.location}"
    yield f"would attach the {what} as {plan.app}/{plan.stage}; nothing was changed"
    yield ""
    rows = (
        (name, plan.operators[name], _columns(table.key), _columns(_visible(table)))
        for name, table in plan.tables.items()
    )
    yield TableBlock.from_rows(("table", "operator", "key", "columns"), rows)
    yield ""
    yield _waiting_line(plan) if source.formats else _available_batches_line(plan)
    tables = {
        name: {"operator": plan.operators[name], "key": _types(table.key), "values": _types(_visible(table))}
        for name, table in plan.tables.items()
    }
    batches = [plan.available[0], plan.available[-1]] if plan.available else []
    where = {"checkpoint": source.location, "query": source.query, "formats": dict(source.formats)}
    return attributes(plan, "app", "stage", "next_batch", **where, batches=batches, tables=tables)


def _visible(table: Table) -> list[Column]:
    return [column for column in table.values if not is_internal(column.name)]


def _waiting_line(plan: AttachPlan) -> str:
    if not plan.next_batch:
        return "history begins with the newest row of each key" if plan.available else "the topic has no records yet"
    waiting = max(0, plan.committed.stop - plan.next_batch)
    return f"{waiting:,} more versions would follow" if waiting else "all records have versions"


def _available_batches_line(plan: AttachPlan) -> str:
    if not plan.available:
        return "the query has not committed a batch yet"
    first, last = plan.available[0], plan.available[-1]
    readable = f"batches {first} to {last} can be read" if last > first else f"batch {last} can be read"
    if not plan.next_batch:
        began = instants.format_iso(plan.first_ms)
        return f"{readable}: history begins {began}, with all rows at the end of batch {first}"
    if plan.next_batch > last:
        return f"{readable}; all of them have versions"
    if plan.next_batch >= first:
        return f"{readable}; the next is batch {plan.next_batch}"
    return f"{readable}; batches {plan.next_batch} to {first} become one version: earlier ones are gone"


def _types(columns: Iterable[Column]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


def _columns(columns: Iterable[Column]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _types(columns).items())


def attached_version_result(app: str, version: FollowedVersion) -> Result:
    manifest, attached = version.manifest, version.manifest.attached
    batch, batches = (attached.next_batch - 1, attached.batches) if attached else (None, 0)
    behind = "behind the topic" if attached is not None and attached.follows_topic else "after Spark's commit"
    data = attributes(manifest, "stage", "version", app=app, batch=batch, batches=batches) | attributes(
        version, "rows", "behind_ms"
    )
    line = (
        f"{instants.format_iso(manifest.time_ms)}  {app}/{manifest.stage}@v{manifest.version}  "
        f"{', '.join(filter(None, (describe_imported_batches(manifest), plural(version.rows, 'row') + ' changed')))}, "
        f"{formats.duration(version.behind_ms)} {behind}"
    )
    return Result(data, line)


def attach_result(head: Manifest, versions: int) -> Result:
    attached = head.attached
    next_batch = attached.next_batch if attached is not None else 0
    if attached is not None and attached.follows_topic:
        upto = (
            f"up to {formats.format_offsets((topic, at.offsets) for topic, at in head.inputs.items()) or 'no record'}"
        )
    else:
        upto = f"up to batch {next_batch - 1}" if next_batch else "the query has not committed a batch yet"
    line = f"{head.app}/{head.stage}: {plural(versions, 'version')} more, {upto}"
    data = attributes(head, "app", "stage", versions=versions, next_batch=next_batch)
    return Result(data, line)


_MAX_DIFFERENT = 5


@result_from_blocks
def adoption_plan_result(plan: AdoptionPlan) -> BlockGenerator:
    columns, first, last = _types(plan.table.columns), plan.batches[0], plan.batches[-1]
    yield f"{plan.location}, the query {plan.query}, would become {plan.app}/{plan.stage}; nothing was changed"
    yield ""
    rows = (
        (column.column, columns.get(column.column, ""), ", ".join(column.sources) or "-", column.how or "as it is")
        for column in plan.mapped_columns
    )
    yield TableBlock.from_rows(("column", "type", f"of the state ({', '.join(plan.operator_kinds)})", "how"), rows)
    yield ""
    count = formats.plural(len(plan.batches), "version")
    yield f"batches {first} to {last} would become {count}; the first has all rows at the end of batch {first}"
    yield f"it would continue at {formats.format_offsets(plan.offsets.items())}"
    columns_made = {
        column.column: attributes(column, "how", of=list(column.sources), type=columns.get(column.column))
        for column in plan.mapped_columns
    }
    about = {"checkpoint": plan.location, "batches": [first, last], "columns": columns_made, "dry_run": True}
    return attributes(plan, "app", "stage", "query", "offsets") | about


def adoption_progress_line(step: AdoptedBatch, batches: range) -> str:
    done = step.batch - batches[0] + 1 if batches else 1
    total = len(batches) or 1
    summary = f"batch {step.batch}: v{step.manifest.version}, {formats.plural(step.rows, 'row')}"
    return f"{formats.progress_bar(done, total)}  {summary}"


@operation_result
def adoption_result(done: AdoptionResult, program: str) -> BlockGenerator:
    where = f"{done.app}/{done.stage}"
    if done.already:
        yield AlreadyDone(f"{where} has the query up to batch {done.last_batch}, which is v{done.version}")
    else:
        yield f"{where} has the query: v1 to v{done.version}, up to batch {done.last_batch}"
    if done.checksum is not None:
        yield f"equal to what Spark reads at that batch: {done.checksum}"
    yield f"it continues at {formats.format_offsets(done.offsets.items())}"
    yield "to run it: ", NextCommand(f"slackwater run {program} --app {done.app}")
    checksum = asdict(done.checksum) if done.checksum is not None else None
    return asdict(done) | {"already": done.already, "checksum": checksum}


def emitted_program_result(path: str, stage: str, checkpoint: str) -> Result:
    return Result(
        {"program": path, "stage": stage},
        f"wrote {path}, which declares the stage {stage}; write the function of the stage yourself",
        ("then: ", NextCommand(f"slackwater adopt {checkpoint} {path} --stage {stage} --dry-run")),
    )


def shadow_result(batch: ShadowBatch, equal: int, equal_ms: int) -> Result:
    different = batch.different
    first = [asdict(change) for change in different.head(_MAX_DIFFERENT)] if different is not None else []
    data = attributes(batch, "batch", "time_ms", "records", "keys", equal_batches=equal, equal_ms=equal_ms)
    data |= {"different": first, "different_keys": len(different) if different is not None else 0}
    data["keys_of_different_parts"] = batch.parts.num_rows if batch.parts is not None else 0
    line = (
        f"{instants.format_iso(batch.time_ms)}  batch {batch.batch}: {formats.plural(batch.records, 'record')}, "
        f"{formats.plural(batch.keys, 'key')} changed: "
    )
    if batch.parts is not None:
        count = batch.parts.num_rows
        parts = f"lists or maps of {formats.plural(count, 'key')} have other elements"
        shown = values.grid(batch.parts, _MAX_DIFFERENT)
        if different is None:
            return Result(data, f"{line}{parts}", shown)
        line = f"{line}{parts}; "
    if different is None:
        return Result(
            data, f"{line}equal for {formats.duration(equal_ms)}, {equal:,} batch{'' if equal == 1 else 'es'}"
        )
    flat = different.head(_MAX_DIFFERENT).to_table()
    named = [name.replace("before_", "query_").replace("after_", "stage_") for name in flat.column_names]
    rows = zip(*(map(str, python_values(column)) for column in flat.columns), strict=True)
    more = f", the first {_MAX_DIFFERENT}" if len(different) > _MAX_DIFFERENT else ""
    return Result(
        data,
        f"{line}{formats.plural(len(different), 'key')} differ{'s' if len(different) == 1 else ''}{more}",
        TableBlock.from_rows(named, rows),
    )
