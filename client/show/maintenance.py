"""Output of operations on stored state, such as gc, compaction, rewind, edit, rescale, forget and tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...common import instants
from ...operations.erasure.forget import ErasureResult, KeySearchResult, RemovedRows
from ...operations.erasure.held import UNREAD, HeldObject, UndecidedRecords
from ...operations.erasure.reach import OutOfReach
from ...operations.maintenance.compact import Compacted, Merge
from ...operations.maintenance.removal import Protection, Removed
from ...operations.maintenance.tokens import Token
from ...operations.repair.reset import ResetDone
from ...operations.repair.rewind import Rewound
from ...snapshot.change.edit import EditDone
from ...snapshot.change.stages import Rescaled, Retired
from ...snapshot.gc.archives import ArchiveCollected
from ...snapshot.gc.collect import Collected, Explanation
from ...snapshot.status.overview import ArchiveStatus
from ...snapshot.take.audit_log import Operation
from ...snapshot.take.taking import retire_question
from ...store.versions.forgotten import ForgetJournal
from ...store.versions.keys import is_source
from ...store.versions.manifest import Manifest
from . import values
from .document import Block, Name, NextCommand, Remark, TableBlock, Title
from .formats import MAX_SHOWN, count, duration, join_ranges, name_with_folder, plural, size
from .shown import AlreadyDone, BlockGenerator, Result, attributes, operation_result, result_from_blocks
from .status import archives_table

if TYPE_CHECKING:
    from ...operations.maintenance.archive_fill import ArchiveMerged, TopicFilled

_RULES = {
    "head": "newest",
    "retention": "retention",
    "versions": "newest versions",
    "hourly": "hourly",
    "daily": "daily",
    "young": "less than an hour old",
    "unread": "not read yet downstream",
    "unpublished": "not published yet",
    "request": "snapshot under way",
    "snapshot": "snapshots",
    "clone": "clones",
}


GUARDED_VERBS = "rewind, reset, edit, repair, forget, retire, promote, app rm, clone rm and clone refresh"


def explanation_result(explanation: Explanation) -> Result:
    title = f"{explanation.object} {'is kept' if explanation.kept else 'will be deleted by the next gc'}"
    return Result(explanation, Title(title), *explanation.reasons)


@result_from_blocks
def gc_result(done: Collected) -> BlockGenerator:
    verb = "would collect" if done.dry_run else "collected"
    deleted = [f"{plural(done.objects, 'object')}, {size(done.bytes)}"] if done.objects else []
    # The objects of deleted records are deleted an hour later, because readers of the previous index may still use
    # them.
    if done.archived_records:
        deleted.append(f"{plural(done.archived_records, 'record')} in the input archive")
    yield Title(f"{verb} {', and '.join(deleted) or 'nothing'} of {done.app}")
    headings = ("stage", ">versions gone", ">SSTs gone", ">size gone", ">versions kept", "kept range", ">size kept")
    sizes = ((s, size(s.bytes), f"v{s.first} to v{s.head}", size(s.kept_bytes)) for s in done.stages)
    rows = (
        (s.stage, s.versions, s.ssts, gone, s.kept_versions, whole, size_kept) for s, gone, whole, size_kept in sizes
    )
    yield TableBlock.from_rows(headings, rows)
    rules = _RULES | ({"retention": "without an expiry rule"} if done.retention.keeps_everything else {})
    for stage in done.stages:
        yield f"{stage.stage} keeps {', '.join(f'{count(n)} {rules[rule]}' for rule, n in stage.rules.items())}"
    for stage in done.stages:
        for reader in stage.held_up_by:
            advice = retire_question(done.app, [reader])
            yield f"{stage.stage} keeps versions for {reader}, which has not committed for an hour or more: {advice}"
    if done.archives:
        of_archive = ("input archive", ">records gone", ">objects gone", ">size gone", ">records kept", ">size kept")
        yield TableBlock.from_rows(of_archive, map(_archive_row, done.archives))
    if done.records:
        yield f"{plural(done.records, 'object')} of in-flight records that no snapshot needs"
    if done.leftovers:
        yield f"{plural(done.leftovers, 'interrupted write')}"
    for lost in done.absent:
        yield f"snapshot {lost.snapshot} pins {lost.stage}@v{lost.version}, which is missing; its other pins hold"
    for sentence in done.damaged:
        yield f"one archive was skipped: {sentence}"
    if waiting := sum(stage.waiting_ssts for stage in done.stages):
        yield f"{plural(waiting, 'unreferenced SST')} kept: the next batch may refer to them"
    if done.retention.keeps_everything:
        yield "no retention rule is set, so all history is kept; set rules under [retention] in slackwater.toml"
    return done


def _archive_row(archive: ArchiveCollected) -> tuple[str | int, ...]:
    topic = archive.topic if archive.life == 1 else f"{archive.topic} (recreated, {archive.life})"
    return topic, archive.records, archive.objects, size(archive.bytes), archive.kept_records, size(archive.kept_bytes)


def compacted_line(done: Compacted) -> str:
    parts = (
        f"{done.stage} v{done.version}",
        f"{plural(done.inputs, 'SST')} to {done.outputs}",
        f"range{'s' if len(done.partitions) > 1 else ''} {', '.join(map(str, done.partitions))}",
        f"{size(done.bytes_read)} read, {size(done.bytes_written)} written",
        f"{plural(done.left_out, 'merge')} skipped: another process was faster" if done.left_out else "",
    )
    return "  ".join(filter(None, parts))


@operation_result
def compaction_result(
    app_name: str, done: Sequence[Compacted], earlier: Sequence[Manifest], archives: "Sequence[ArchiveMerged]" = ()
) -> BlockGenerator:
    """Return the result of a compaction. If nothing was merged, `earlier` has the versions of the latest merges."""
    if earlier:
        merged = (
            f"{manifest.stage} by v{manifest.version}, {instants.format_age(manifest.time_ms)}" for manifest in earlier
        )
        yield AlreadyDone(f"nothing to merge in {app_name}; merged {'; '.join(merged)}")
    elif not done and not archives:
        yield f"nothing to merge in {app_name}"
    elif done:
        yield Title(f"compacted {app_name}")
        headings = ("stage", ">version", ">merges", ">SSTs before", ">after", ">read", ">written")
        sizes = ((m, size(m.bytes_read), size(m.bytes_written)) for m in done)
        rows = ((m.stage, f"v{m.version}", m.merges, m.inputs, m.outputs, read, wrote) for m, read, wrote in sizes)
        yield TableBlock.from_rows(headings, rows)
    for archive in archives:
        summary = f"{archive.topic}: {plural(archive.before, 'object')} to {archive.after}, {size(archive.bytes)} read"
        yield f"merged in the input archive of {summary}"
    return {"app": app_name, "versions": done, "archives": archives}


@operation_result
def compaction_plan_result(
    app_name: str, due: Sequence[Merge], archives: "Sequence[ArchiveMerged]" = (), *, dry_run: bool
) -> BlockGenerator:
    if not due and not archives:
        yield f"nothing to merge in {app_name}"
    elif due:
        yield Title(f"would merge in {app_name}")
        merges = ((m, ", ".join(map(str, m.levels)), "moved, not rewritten" if m.moves else "") for m in due)
        rows = ((m.stage, str(m.partition), m.inputs, size(m.bytes), at, str(m.level), how) for m, at, how in merges)
        yield TableBlock.from_rows(("stage", ">range", ">SSTs", ">size", "of levels", "into level", ""), rows)
    for archive in archives:
        first = plural(archive.before - archive.after + 1, "object")
        yield f"would merge {first} of the input archive of {archive.topic} first"
    return {"app": app_name, "merges": due, "archives": archives}


@operation_result
def archive_result(
    app_name: str, archives_found: Sequence[ArchiveStatus], filled: "Sequence[TopicFilled] | None", *, dry_run: bool
) -> BlockGenerator:
    for topic in filled or ():
        if dry_run:
            yield f"would add {plural(topic.offsets, 'offset')} of {topic.topic} to its input archive"
        elif topic.offsets:
            yield f"added {plural(topic.records, 'record')} of {topic.topic} to its input archive"
        else:
            yield f"done already: the input archive of {topic.topic} has all records that Kafka still has"
        if topic.gone:
            gaps = ", ".join(f"{topic.topic}{gap}" for gap in topic.gone[:MAX_SHOWN])
            yield f"deleted from Kafka and not archived: {gaps}"
    if filled is not None and not filled:
        yield f"{app_name} has read nothing since then"
    if not archives_found:
        yield f'{app_name} has no input archive; to keep one, set input = "30d" under [retention] in slackwater.toml'
    else:
        yield archives_table(archives_found)
    for archive in archives_found:
        yield f"{archive.topic} from {', '.join(archive.holds[:MAX_SHOWN]) or 'no offset yet'}"
        for gap in archive.gaps[:MAX_SHOWN]:
            yield f"gap: {archive.topic}{gap}; reading it, for example in a replay, fails"
    return {"app": app_name, "archives": archives_found, "filled": filled}


@operation_result
def protection_result(protection: Protection, *, already: bool) -> BlockGenerator:
    why = f": {protection.message}" if protection.message else ""
    if already:
        yield AlreadyDone(
            f"{protection.app} is protected by {protection.by}, {instants.format_with_age(protection.time_ms)}{why}"
        )
    else:
        yield f"{protection.app} is protected{why}; {GUARDED_VERBS} require its name"
    return {"app": protection.app, "protected": protection}


@operation_result
def unprotection_result(app_name: str, *, was_protected: bool) -> BlockGenerator:
    yield f"{app_name} is no longer protected" if was_protected else AlreadyDone(f"{app_name} is not protected")
    return {"app": app_name, "protected": None}


@operation_result
def rewind_result(done: Rewound, *, dry_run: bool) -> BlockGenerator:
    plan, versions = done.plan, done.versions
    app, would = plan.app, "would be " if dry_run else ""
    if not plan.steps:
        yield AlreadyDone(f"{app} has the state of {plan.ref}")
    else:
        yield Title(f"{app} {would}rewound to {plan.ref}, {instants.format_with_age(plan.to.time_ms)}")
    for stage in plan.stages:
        was = f"state of v{stage.to}" if stage.to else "state before its first version"
        now = f"v{versions[stage.stage]}" if stage.stage in versions else f"v{stage.version} now"
        yield f"{stage.stage}  {now}  {was}{', retired' if stage.retires else ''}"
        if stage.offsets:
            yield f"  re-reads {join_ranges(stage.offsets)}"
    yield from _effects(done)
    if plan.others:
        had = " and ".join(plan.others)
        yield f"since that moment, this name belonged to {had} after a promotion; rows that {had} published stay, too"
    if done.snapshot and not dry_run:
        was = f"{app}@{done.snapshot}"
        yield f"undone state: {was}; to return to it: ", NextCommand(f"slackwater rewind {was}")
        offsets = "its current offsets" if plan.table_only else "these offsets"
        yield f"the next `slackwater run` continues at {offsets}"
    changes = [attributes(table_changes, "table", "added", "removed", "changed") for table_changes in done.changes]
    data = {"rewind": done.number or None, "snapshot": done.snapshot or None, "versions": versions, "changes": changes}
    data |= attributes(plan, "app", "stages", "sinks", "others", to=plan.to.versions, keep_offsets=plan.table_only)
    return data


def _effects(done: Rewound) -> Iterator[Block]:
    for table in done.changes:
        counts = ((table.removed, "removed"), (table.added, "restored"), (table.changed, "changed back"))
        yield f"{table.table}: " + (
            ", ".join(f"{plural(n, 'row')} {verb}" for n, verb in counts if n) or "no row changes"
        )
    for sink in done.plan.sinks:
        if sink.rows:
            where = join_ranges(sink.offsets)
            them = f"{sink.rows:,} of the rows in {where}" if where else plural(sink.rows, "row")
            fate = f"withdrawn from {sink.table} by the next run" if sink.table else "not withdrawn"
            yield f"sink {sink.sink}: published since and {fate}: {them}; re-read records are published again"
        if sink.dropped:
            unpublished = plural(sink.dropped, "unpublished row")
            yield f"sink {sink.sink}: {unpublished} dropped; re-reading publishes them"


@operation_result
def reset_result(done: ResetDone, *, dry_run: bool) -> BlockGenerator:
    app, would = done.app, "would be " if dry_run else ""
    if not done.stages:
        yield AlreadyDone(f"{app} continues at these offsets")
    else:
        yield Title(f"{app} {would}reset {done.scenario}")
    for stage in done.stages:
        now = f"v{done.versions[stage.stage]}" if stage.stage in done.versions else f"v{stage.version} now"
        yield f"{stage.stage}  {now}  continues at {join_ranges(map(str, stage.moved))}"
        for why in stage.made_again:
            yield f"  {why}"
        if stage.read_again:
            yield f"  {plural(stage.read_again, 'offset')} re-read: tables count their records again"
        if stage.skipped:
            of_current_topic = " of the current topic" if stage.made_again else ""
            only = "correct only if the app has read the same records" if of_current_topic else "their records are lost"
            yield f"  {plural(stage.skipped, 'offset')}{of_current_topic} skipped: {only}"
        if stage.watermark_ms is not None:
            yield f"  rows before {instants.format_iso(stage.watermark_ms)}, the watermark, are too late for a window"
        if stage.sinks:
            yield f"  re-read records are published again, to {', '.join(stage.sinks)}"
    if done.snapshot and not dry_run:
        if any(stage.made_again for stage in done.stages):
            gone = "a rewind to it is refused, because its topic is gone"
            yield f"previous state: {app}@{done.snapshot}, for queries and diffs; {gone}"
        else:
            was = f"{app}@{done.snapshot}"
            yield f"previous state: {was}; to return to it: ", NextCommand(f"slackwater rewind {was}")
        yield "the next `slackwater run` continues at these offsets"
    names = ("stage", "version", "moved", "read_again", "skipped", "watermark_ms", "sinks", "made_again")
    data = {"reset": done.number or None, "snapshot": done.snapshot or None}
    return attributes(done, "app", "versions", stages=[attributes(stage, *names) for stage in done.stages]) | data


@operation_result
def edit_result(done: EditDone, previous: Manifest, *, with_values: bool, dry_run: bool) -> BlockGenerator:
    stage, changes = f"{done.app}/{done.stage}", done.changes
    number = len(changes) if changes is not None else 0
    if done.already:
        yield AlreadyDone(f"{stage} v{done.version} has this edit; to apply it again, add --again")
    elif changes is None:
        yield f"no row of {stage} changes: nothing was done"
    elif dry_run:
        yield Title(f"would change {plural(number, 'row')} of {stage}")
    else:
        who = f", applied by {done.runner} between two batches" if done.runner else ""
        yield Title(f"{stage} v{done.version}: changed {plural(number, 'row')}{who}")
    if changes is not None and with_values:
        yield values.key_changes_table(changes)
        if (more := number - MAX_SHOWN) > 0:
            yield f"and {more:,} more; --json gives all"
    if changes is not None and not dry_run:
        yield "nothing was sent downstream: stages that read this one keep the old rows"
        yield "previous state: ", NextCommand(f"slackwater query {stage}@v{done.version - 1}")
    kinds = changes.kinds().tolist() if changes is not None else []
    counts = {kind: kinds.count(kind) for kind in ("added", "removed", "changed")}
    data = {"version": done.version or None, "before": previous.version, "runner": done.runner or None}
    rows = values.changed_rows(changes or ()) if with_values else None
    return attributes(done, "app", "stage", rows=rows) | counts | data


@operation_result
def rescale_result(done: Rescaled, *, dry_run: bool) -> BlockGenerator:
    stage = f"{done.app}/{done.stage}"
    change = f"{stage} from {done.before} to {plural(done.partitions, 'state partition')}"
    if done.before == done.partitions:
        yield AlreadyDone(f"{stage} has {plural(done.before, 'state partition')}")
    elif dry_run:
        yield f"would rescale {change} with v{done.version}"
    else:
        yield f"rescaled {change} with v{done.version}; {plural(done.ssts, 'SST')} kept as they are"
        yield "a running stage stops now; to continue: ", NextCommand("slackwater run FILE")
    return asdict(done)


@operation_result
def retirement_result(done: Retired, *, dry_run: bool) -> BlockGenerator:
    data, stage = asdict(done), f"{done.app}/{done.stage}"
    if done.already:
        yield AlreadyDone(f"{stage} is retired since v{done.version}")
        return data
    last = f"it last committed {instants.format_with_age(done.last_ms)}, by {done.last_by or 'unknown'}"
    if dry_run:
        yield f"would retire {stage} with v{done.version}"
        yield f"{last}; a runner that has it would stop"
    else:
        table = f" ({plural(done.ssts, 'SST')})" if done.ssts else ""
        yield f"retired {stage} with v{done.version}; its history stays, and so does its table{table}"
        yield f"{last}; a runner that has it stops within seconds, with all stages that it runs"
    if done.snapshots:
        yield f"snapshots under way do not wait for it {'then' if dry_run else 'any more'}: {', '.join(done.snapshots)}"
    for sender, versions in done.unread.items():
        yield f"it has not read {plural(versions, 'version')} of {sender}, which gc no longer keeps for it"
    if not dry_run:
        yield (
            "see its last state: ",
            NextCommand(f"slackwater query {stage}"),
            "; a program that declares it brings it back",
        )
    return data


@operation_result
def removal_result(done: Removed, called: str, groups: Sequence[str], *, topics: bool, dry_run: bool) -> BlockGenerator:
    """Return the result of an app's removal. `topics` is True if its topics and consumer groups are removed as well."""
    removal, contents, verb = done.removal, done.contents, "would remove" if dry_run else "removed"
    app = name_with_folder(called, removal.app)
    if done.already:
        yield AlreadyDone(f"{app} was removed {instants.format_with_age(removal.time_ms)}, by {removal.by}")
    else:
        stages, versions = (len(removal.stages), "stage"), (contents.versions, "version")
        counted = (stages, versions, (contents.ssts, "SST"), (contents.snapshots, "snapshot"))
        counts = ", ".join(plural(number, noun) for number, noun in counted)
        yield f"{verb} {app}: {counts}; {plural(contents.objects, 'object')}, {size(contents.bytes)}"
    for kind, names in (("topics", ", ".join(removal.topics)), ("consumer groups", ", ".join(groups))):
        if names and topics:
            yield f"{verb} from Kafka its {kind} {names}"
        elif names:
            yield f"kept in Kafka: its {kind} {names} (--topics removes them)"
    return asdict(done) | {"groups": groups}


_TOPICS = {
    "input": "yours",
    "channel": "between stages",
    "sink's own topic": "a sink's, internal",
    "sink's topic": "a sink's",
}


@operation_result
def forget_result(done: ErasureResult, app_name: str, *, dry_run: bool) -> BlockGenerator:
    keys = plural(done.keys, "key")

    def called(app: str) -> str:
        return app_name if app == done.app else app

    if dry_run:
        yield Title(
            f"would forget {keys} in {app_name}: {plural(len(done.held), 'object')} to rewrite, {_bytes(done.held)}"
        )
        yield from _deleted_table(done.gone)
        yield from _matches_table(done.held)
    else:
        yield Title(f"forgot {keys} in {app_name}: {plural(done.rows, 'stored row')} and records")
        summary = f"rewrote {size(done.read_bytes)} as {size(done.written_bytes)}"
        yield f"{summary}; {plural(done.deleted, 'object')} deleted"
        yield from _deleted_table(done.gone)
        for app, stage, version in done.versions:
            where = f"{called(app)}/{stage} v{version}"
            yield f"{where} records it; earlier versions read as if the keys had never existed"
    if clones := done.apps[1:]:
        yield f"also in its clones: {', '.join(clones)}"
    for app, name in done.snapshots:
        yield f"snapshot {called(app)}@{name} was edited"
    for stray in done.unnamed:
        yield f"{stray.object} holds a key and is unreferenced: gc deletes it, unless the current batch refers to it"
    yield from _unread(done.unread)
    yield from _unproved(done.unproved)
    if done.others:
        yield Remark(
            f"other tables: {', '.join(done.others)}. To forget the same person there, add their keys: --key TABLE=KEY"
        )
    yield ""
    yield from _out_of_reach(done.out_of_reach)
    if not dry_run:
        yield "to verify: ", NextCommand(f"slackwater verify {app_name} --forgotten --key TABLE=KEY")
    return asdict(done)


def forgotten_search_result(findings: KeySearchResult, app_name: str) -> Result:
    """Return the result of `verify --forgotten`; it fails if an object holds or may hold a key."""
    return Result(
        asdict(findings), *_search_blocks(findings, app_name), failed=bool(findings.held or findings.unproved)
    )


def _search_blocks(findings: KeySearchResult, app_name: str) -> Iterator[Block]:
    keys, where = plural(findings.keys, "key"), ", ".join((app_name, *findings.apps[1:]))
    if findings.held:
        yield Title(f"{plural(len(findings.held), 'object')} of {where} hold one of {keys}, {_bytes(findings.held)}")
        yield from _matches_table(findings.held)
        yield from _unread([match for match in findings.held if match.what == UNREAD])
        if any(match.what != UNREAD for match in findings.held):
            yield "to delete them: ", NextCommand(f"slackwater forget {app_name} --key TABLE=KEY")
    elif findings.unproved:
        records = plural(sum(records_of_kind.records for records_of_kind in findings.unproved), "record")
        yield Title(
            f"not proved: no object of {where} was found to hold any of {keys}, but {records} could not be checked"
        )
    else:
        yield Title(f"no object of {where} holds any of {keys}")
    yield from _unproved(findings.unproved)
    if findings.elsewhere:
        objects = plural(len(findings.elsewhere), "object")
        yield f"{objects} contain the text of a key in other fields; these rows may concern other people:"
        yield from _matches_table(findings.elsewhere)
    how = (
        "all of them decoded in full"
        if findings.deep
        else "by key, and by record fields that lead to a key; --deep decodes every object"
    )
    yield f"searched {plural(findings.objects, 'object')}, {how}"
    yield ""
    yield from _out_of_reach(findings.out_of_reach)


@result_from_blocks
def abandoned_forget_result(app: str, journal: ForgetJournal) -> BlockGenerator:
    began = f"{journal.by} began {instants.format_with_age(journal.time_ms)}"
    yield f"abandoned the forget that {began}: objects of {app} may still hold keys"
    yield "with the keys, forget them again: ", NextCommand("slackwater forget")
    return {"app": app, "by": journal.by, "time_ms": journal.time_ms}


def _deleted_table(gone: Sequence[RemovedRows]) -> Iterator[Block]:
    if gone:
        rows = ((group.of, group.what, group.field, f"{group.rows:,}", f"{group.objects:,}") for group in gone)
        yield TableBlock.from_rows(("of", "held as", "where it equals", ">rows", ">objects"), rows)


def _unread(unread: Sequence[HeldObject]) -> Iterator[Block]:
    """Yield a warning for each topic with unread records of a forgotten key. Reading them would store the key again."""
    for topic in unread:
        count = plural(sum(topic.fields.values()), "record")
        yield (
            f"{topic.object} has {count} of a forgotten key, not read by any stage yet ({', '.join(topic.fields)}): "
            "reading them brings the key back; forget it again afterwards"
        )


def _unproved(unproved: Sequence[UndecidedRecords]) -> Iterator[Block]:
    counts: dict[tuple[str, str, str], list[int]] = {}
    for undecodable in unproved:
        totals = counts.setdefault((undecodable.table, undecodable.what, undecodable.why), [0, 0])
        totals[0] += undecodable.records
        totals[1] += 1
    if counts:
        rows = ((*place, f"{records:,}", f"{objects:,}") for place, (records, objects) in sorted(counts.items()))
        yield TableBlock.from_rows(("not proved: of", "held as", "", ">records", ">objects"), rows)


def _bytes(matches: Iterable[HeldObject]) -> str:
    return size(sum(match.bytes for match in matches))


def _matches_table(matches: Sequence[HeldObject]) -> Iterator[Block]:
    rows = ((match.object, match.what, match.table or "-", size(match.bytes)) for match in matches[:MAX_SHOWN])
    if matches:
        yield TableBlock.from_rows(("object", "holds it as", "of", ">size"), rows)
    if (more := len(matches) - MAX_SHOWN) > 0:
        yield f"and {plural(more, 'more object')}; --json gives all"


def _out_of_reach(remaining: Sequence[OutOfReach]) -> Iterator[Block]:
    topics = [copy for copy in remaining if copy.what in _TOPICS]
    if topics:
        rows = ((copy.name, _TOPICS[copy.what], _record_lifetime(copy)) for copy in topics)
        yield TableBlock.from_rows(("out of reach: topic", "", "records expire"), rows)
    if any(copy.what == "input" for copy in topics):
        yield "records in your own topics come back when they are read again, for example after a rewind"
    if deep := [copy.name for copy in remaining if copy.what == "deep clone"]:
        yield f"deep clones have their own copies; run forget there as well: {', '.join(deep)}"
    not_topics = [copy.name for copy in remaining if copy.what not in _TOPICS and copy.what != "deep clone"]
    yield f"also out of reach: {'; '.join(not_topics)}"


def _record_lifetime(topic: OutOfReach) -> str:
    if is_source(topic.name):
        return "never: delete them in the files"
    if topic.retention_ms is None:
        return "by the topic's retention.ms (Kafka could not be asked)"
    if topic.retention_ms >= 0:
        return f"{duration(topic.retention_ms)} after they were written, with their segment"
    return "when they are published" if topic.what == "sink's own topic" else "never: delete them in Kafka"


_TOKEN_FIELDS = ("name", "apps", "tables", "verbs", "per_s", "until_ms", "created_ms", "by", "message")


@operation_result
def new_token_result(token: Token, sent: str, *, dry_run: bool) -> BlockGenerator:
    """Return the result of creating a token. No other output shows the token."""
    rights = f"{', '.join(token.verbs)} of {', '.join(token.apps)}, tables {', '.join(token.tables)}"
    if dry_run:
        yield f"would make token {token.name}: {rights}"
        return attributes(token, *_TOKEN_FIELDS, token="")
    yield Title(f"token {token.name}: {rights}")
    if sent:
        yield "shown only once; the store keeps its hash:"
        yield Name(sent)
    else:
        yield f"for client certificates with the common name {token.name}"
    return attributes(token, *_TOKEN_FIELDS, token=sent)


def token_list_result(token_list: Sequence[Token]) -> Result:
    rows = (
        (
            token.name,
            ", ".join(token.verbs),
            ", ".join(token.apps),
            ", ".join(token.tables),
            "" if token.digest else "certificate",
            instants.format_with_age(token.created_ms),
            instants.format_iso(token.until_ms) if token.until_ms else "",
            token.by,
        )
        for token in token_list
    )
    table = TableBlock.from_rows(("name", "may", "apps", "tables", "", "made", "until", "by"), rows)
    none = "this store has no token; `slackwater token add NAME --app APP` makes one"
    return Result([attributes(token, *_TOKEN_FIELDS) for token in token_list], table if token_list else none)


@operation_result
def token_removal_result(name: str, gone: Token | Operation, *, dry_run: bool) -> BlockGenerator:
    if isinstance(gone, Operation):
        yield AlreadyDone(f"token {name} was removed {instants.format_with_age(gone.time_ms)} by {gone.by}")
    else:
        yield f"{'would remove' if dry_run else 'removed'} token {name}; it stops working within 5 s"
    return {"name": name}
