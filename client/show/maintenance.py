"""What changes what is stored: collection, compaction, rescaling, retiring, removal, forgetting, as they are shown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...common import instants
from ...operations.erasure.forget import Forgot, GoneRows, Looked
from ...operations.erasure.held import UNREAD, Held, Unproved
from ...operations.erasure.reach import OutOfReach
from ...operations.maintenance.compact import Compacted, Merge
from ...operations.maintenance.protection import Protection
from ...operations.maintenance.removal import Removed
from ...operations.maintenance.tokens import Token
from ...operations.repair.reset import ResetDone
from ...operations.repair.rewind import Rewound
from ...snapshot.change.edit import EditDone
from ...snapshot.change.stages import Rescaled, Retired
from ...snapshot.gc.archives import ArchiveCollected
from ...snapshot.gc.collect import Collected, Explanation
from ...snapshot.status.archives import ArchiveStatus
from ...snapshot.take.waiting import ask_whether_gone
from ...store.versions.forgotten.under_way import Forgetting
from ...store.versions.manifest import Manifest
from . import values
from .document import Block, Name, NextCommand, Remark, TableBlock, Title
from .formats import MOST_SHOWN, count, duration, in_folder, plural, size, windows
from .shown import Already, Result, Words, fields, operation, result
from .status import archives

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
"""Why versions are kept, in words."""


ASKING = "rewind, reset, edit, forget, retire, promote, app rm, clone rm and clone refresh"
"""The verbs that want the name of a protected app."""


def explained(found: Explanation) -> Result:
    """Why an object is kept, or not."""
    title = f"{found.object} {'is kept' if found.kept else 'goes at the next collection'}"
    return Result(found, Title(title), *found.reasons)


@result
def collected(done: Collected) -> Words:
    """What garbage collection took, and why the rest stays."""
    verb = "would collect" if done.dry_run else "collected"
    what = [f"{plural(done.objects, 'object')}, {size(done.bytes)}"] if done.objects else []
    # Their objects go an hour later: whoever has read the index of before may be reading them.
    if done.archived_records:
        what.append(f"{plural(done.archived_records, 'record')} in the input archive")
    yield Title(f"{verb} {', and '.join(what) or 'nothing'} of {done.app}")
    headings = ("stage", ">versions gone", ">SSTs gone", ">size gone", ">versions kept", "whole from", ">size kept")
    sizes = ((s, size(s.bytes), f"v{s.first} to v{s.head}", size(s.kept_bytes)) for s in done.stages)
    rows = ((s.stage, s.versions, s.ssts, gone, s.kept_versions, whole, kept) for s, gone, whole, kept in sizes)
    yield TableBlock.of(headings, rows)
    words = _RULES | ({"retention": "that no rule lets go"} if done.retention.keeps_everything else {})
    for each in done.stages:
        yield f"{each.stage} keeps {', '.join(f'{count(n)} {words[rule]}' for rule, n in each.rules.items())}"
    for each in done.stages:
        for reader in each.held_up_by:
            advice = ask_whether_gone(done.app, [reader])
            yield f"{each.stage} keeps versions for {reader}, which has not committed for an hour or more: {advice}"
    if done.archives:
        of_archive = ("input archive", ">records gone", ">objects gone", ">size gone", ">records kept", ">size kept")
        yield TableBlock.of(of_archive, map(_archived, done.archives))
    if done.records:
        yield f"{plural(done.records, 'object')} of records in flight that no snapshot names"
    if done.leftovers:
        yield f"{plural(done.leftovers, 'write')} that had broken off"
    for lost in done.absent:
        yield f"snapshot {lost.snapshot} pins {lost.stage}@v{lost.version}, which is not there; what else it pins stays"
    for sentence in done.damaged:
        yield f"nothing was collected of one archive: {sentence}"
    if waiting := sum(each.waiting_ssts for each in done.stages):
        yield f"{plural(waiting, 'SST')} that nothing names yet may be named by the next batch, and stay"
    if done.retention.keeps_everything:
        yield "no rule of retention is set, so the whole history stays: [retention] in slackwater.toml has the rules"
    return done


def _archived(each: ArchiveCollected) -> tuple[str | int, ...]:
    topic = each.topic if each.life == 1 else f"{each.topic} (made anew, {each.life})"
    return topic, each.records, each.objects, size(each.bytes), each.kept_records, size(each.kept_bytes)


def compacted_line(done: Compacted) -> str:
    """One version that merged SSTs, in one line."""
    words = (
        f"{done.stage} v{done.version}",
        f"{plural(done.inputs, 'SST')} to {done.outputs}",
        f"partition{'s' if len(done.partitions) > 1 else ''} {', '.join(map(str, done.partitions))}",
        f"{size(done.bytes_read)} read, {size(done.bytes_written)} written",
        f"{plural(done.left_out, 'merge')} left out: somebody else was faster" if done.left_out else "",
    )
    return "  ".join(filter(None, words))


@operation
def compacted(
    app_name: str, done: Sequence[Compacted], earlier: Sequence[Manifest], archives: "Sequence[ArchiveMerged]" = ()
) -> Words:
    """What was merged; `earlier` are the versions that did when nothing is left to."""
    if earlier:
        merged = (f"{each.stage} by v{each.version}, {instants.age(each.time_ms)}" for each in earlier)
        yield Already(f"nothing to merge in {app_name}; merged {'; '.join(merged)}")
    elif not done and not archives:
        yield f"nothing to merge in {app_name}"
    elif done:
        yield Title(f"compacted {app_name}")
        headings = ("stage", ">version", ">merges", ">SSTs before", ">after", ">read", ">written")
        sizes = ((m, size(m.bytes_read), size(m.bytes_written)) for m in done)
        rows = ((m.stage, f"v{m.version}", m.merges, m.inputs, m.outputs, read, wrote) for m, read, wrote in sizes)
        yield TableBlock.of(headings, rows)
    for one in archives:
        what = f"{one.topic}: {plural(one.before, 'object')} to {one.after}, {size(one.bytes)} read"
        yield f"merged in the input archive of {what}"
    return {"app": app_name, "versions": done, "archives": archives}


@operation
def to_compact(
    app_name: str, due: Sequence[Merge], archives: "Sequence[ArchiveMerged]" = (), *, dry_run: bool
) -> Words:
    """What would be merged."""
    if not due and not archives:
        yield f"nothing to merge in {app_name}"
    elif due:
        yield Title(f"would merge in {app_name}")
        words = ((m, ", ".join(map(str, m.levels)), "moved, not rewritten" if m.moves else "") for m in due)
        rows = ((m.stage, str(m.partition), m.inputs, size(m.bytes), at, str(m.level), how) for m, at, how in words)
        yield TableBlock.of(("stage", ">partition", ">SSTs", ">size", "of levels", "into level", ""), rows)
    for one in archives:
        yield f"would merge {plural(one.before - one.after + 1, 'object')} of the input archive of {one.topic} first"
    return {"app": app_name, "merges": due, "archives": archives}


@operation
def archived(
    app_name: str, found: Sequence[ArchiveStatus], filled: "Sequence[TopicFilled] | None", *, dry_run: bool
) -> Words:
    """The input archives of an app, and what they were filled with."""
    for one in filled or ():
        if dry_run:
            yield f"would add {plural(one.offsets, 'offset')} of {one.topic} to its input archive"
        elif one.offsets:
            yield f"added {plural(one.records, 'record')} of {one.topic} to its input archive"
        else:
            yield f"done already: of {one.topic} the input archive has all that Kafka still has"
        if one.gone:
            yield f"gone from Kafka, and in no archive: {', '.join(one.topic + each for each in one.gone[:MOST_SHOWN])}"
    if filled is not None and not filled:
        yield f"{app_name} has read nothing since then"
    if not found:
        yield f'{app_name} has no input archive; input = "30d" under [retention] in slackwater.toml keeps one'
    else:
        yield archives(found)
    for each in found:
        yield f"{each.topic} from {', '.join(each.holds[:MOST_SHOWN]) or 'nowhere yet'}"
        for gap in each.gaps[:MOST_SHOWN]:
            yield f"a gap: {each.topic}{gap}; what is read there, such as a replay, ends with an error"
    return {"app": app_name, "archives": found, "filled": filled}


@operation
def protected(found: Protection, *, already: bool) -> Words:
    """An app that is protected."""
    why = f": {found.message}" if found.message else ""
    if already:
        yield Already(f"{found.app} is protected by {found.by}, {instants.when(found.time_ms)}{why}")
    else:
        yield f"{found.app} is protected{why}; {ASKING} want its name once more"
    return {"app": found.app, "protected": found}


@operation
def unprotected(app_name: str, *, was: bool) -> Words:
    """An app that is protected no more."""
    yield f"{app_name} is protected no more" if was else Already(f"{app_name} is not protected")
    return {"app": app_name, "protected": None}


@operation
def rewound(done: Rewound, *, dry_run: bool) -> Words:
    """An app that was taken back to an earlier moment, or would be."""
    plan, versions = done.plan, done.versions
    app, would = plan.app, "would be " if dry_run else ""
    if not plan.steps:
        yield Already(f"{app} is what it was at {plan.ref}")
    else:
        yield Title(f"{app} {would}rewound to {plan.ref}, {instants.when(plan.to.time_ms)}")
    for each in plan.stages:
        was = f"as v{each.to} was" if each.to else "as before it began"
        now = f"v{versions[each.stage]}" if each.stage in versions else f"v{each.version} now"
        yield f"{each.stage}  {now}  {was}{', retired' if each.retires else ''}"
        if each.offsets:
            yield f"  reads again {windows(each.offsets)}"
    for table in done.changes:
        counts = ((table.removed, "went"), (table.added, "came back"), (table.changed, "changed back"))
        yield f"{table.table}: " + (
            ", ".join(f"{plural(n, 'row')} {what}" for n, what in counts if n) or "no row changes"
        )
    for sink in plan.sinks:
        if sink.rows:
            where = windows(sink.offsets)
            them = f"{sink.rows:,} of the rows in {where}" if where else plural(sink.rows, "row")
            yield f"sink {sink.sink}: published since, and not to be unsent: {them}; what is read again comes once more"
        if sink.dropped:
            yield f"sink {sink.sink}: {plural(sink.dropped, 'row')} not published yet are dropped, and come once more"
    if plan.others:
        had = " and ".join(plan.others)
        yield f"{had} had the name since, by a promotion: what was published under it meanwhile is not undone either"
    if done.snapshot and not dry_run:
        was = f"{app}@{done.snapshot}"
        yield f"what was undone: {was}; back to it: ", NextCommand(f"slackwater rewind {was}")
        reads_on = "where it was" if plan.table_only else "from there"
        yield f"the next `slackwater run` reads on {reads_on}"
    changes = [fields(each, "table", "added", "removed", "changed") for each in done.changes]
    told = {"rewind": done.number or None, "snapshot": done.snapshot or None, "versions": versions, "changes": changes}
    told |= fields(plan, "app", "stages", "sinks", "others", to=plan.to.versions, keep_offsets=plan.table_only)
    return told


@operation
def reset(done: ResetDone, *, dry_run: bool) -> Words:
    """Topics that are read on from elsewhere, or would be."""
    app, would = done.app, "would be " if dry_run else ""
    if not done.stages:
        yield Already(f"{app} reads on there")
    else:
        yield Title(f"{app} {would}reset {done.scenario}")
    for each in done.stages:
        now = f"v{done.versions[each.stage]}" if each.stage in done.versions else f"v{each.version} now"
        yield f"{each.stage}  {now}  reads on from elsewhere: {windows(map(str, each.moved))}"
        for why in each.made_again:
            yield f"  {why}"
        if each.read_again:
            yield f"  {plural(each.read_again, 'offset')} read twice: tables count what is there once more"
        if each.skipped:
            here = " of the topic that is there now" if each.made_again else ""
            only = "right only if the app has read the same records" if here else "no table ever knows of them"
            yield f"  {plural(each.skipped, 'offset')}{here} skipped: {only}"
        if each.watermark_ms is not None:
            yield f"  rows of before {instants.iso(each.watermark_ms)}, its watermark, come too late for a window"
        if each.sinks:
            yield f"  what is read twice is published twice, to {', '.join(each.sinks)}"
    if done.snapshot and not dry_run:
        if any(each.made_again for each in done.stages):
            gone = "a rewind to it is refused, as the topic that it read is gone"
            yield f"as it was: {app}@{done.snapshot}; it can be queried and compared; {gone}"
        else:
            was = f"{app}@{done.snapshot}"
            yield f"as it was: {was}; back to it: ", NextCommand(f"slackwater rewind {was}")
        yield "the next `slackwater run` reads on from there"
    names = ("stage", "version", "moved", "read_again", "skipped", "watermark_ms", "sinks", "made_again")
    told = {"reset": done.number or None, "snapshot": done.snapshot or None}
    return fields(done, "app", "versions", stages=[fields(each, *names) for each in done.stages]) | told


@operation
def edited(done: EditDone, before: Manifest, *, with_values: bool, dry_run: bool) -> Words:
    """Rows of a table that were changed by hand, or would be; `before` is the version that it was done to."""
    stage, changes = f"{done.app}/{done.stage}", done.changes
    number = len(changes) if changes is not None else 0
    if done.already:
        yield Already(f"{stage} v{done.version} did it; to do it once more, say --again")
    elif changes is None:
        yield f"no row of {stage} changes: nothing was done"
    elif dry_run:
        yield Title(f"would change {plural(number, 'row')} of {stage}")
    else:
        who = f", by {done.runner} between two batches" if done.runner else ""
        yield Title(f"{stage} v{done.version}: changed {plural(number, 'row')}{who}")
    if changes is not None and with_values:
        yield values.changes(changes)
        if (more := number - MOST_SHOWN) > 0:
            yield f"and {more:,} more; --json gives all"
    if changes is not None and not dry_run:
        yield "nothing was sent on for it: what reads this stage has what it was sent before"
        yield "as it was: ", NextCommand(f"slackwater query {stage}@v{done.version - 1}")
    kinds = changes.kinds().tolist() if changes is not None else []
    counts = {kind: kinds.count(kind) for kind in ("added", "removed", "changed")}
    told = {"version": done.version or None, "before": before.version, "runner": done.runner or None}
    rows = values.changed_rows(changes or ()) if with_values else None
    return fields(done, "app", "stage", rows=rows) | counts | told


@operation
def rescaled(done: Rescaled, *, dry_run: bool) -> Words:
    """Another number of state partitions."""
    stage = f"{done.app}/{done.stage}"
    what = f"{stage} from {done.before} to {plural(done.partitions, 'state partition')}"
    if done.before == done.partitions:
        yield Already(f"{stage} has {plural(done.before, 'state partition')}")
    elif dry_run:
        yield f"would rescale {what} with v{done.version}"
    else:
        yield f"rescaled {what} with v{done.version}; {plural(done.ssts, 'SST')} kept as they are"
        yield "a runner that is on stops now; go on with them: ", NextCommand("slackwater run FILE")
    return asdict(done)


@operation
def retired(done: Retired, *, dry_run: bool) -> Words:
    """A stage without which the app goes on."""
    data, stage = asdict(done), f"{done.app}/{done.stage}"
    if done.already:
        yield Already(f"{stage} is retired since v{done.version}")
        return data
    last = f"it last committed {instants.when(done.last_ms)}, by {done.last_by or 'nobody known'}"
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
        yield f"it has not read {plural(versions, 'version')} of {sender}, which gc keeps no longer for it"
    if not dry_run:
        yield "see its last state: ", NextCommand(f"slackwater query {stage}"), "; a program that has it brings it back"
    return data


@operation
def removed(done: Removed, called: str, groups: Sequence[str], *, topics: bool, dry_run: bool) -> Words:
    """An app that was removed wholly; `groups` are its consumer groups, which go with the topics if `topics` do."""
    removal, what, verb = done.removal, done.contents, "would remove" if dry_run else "removed"
    app = in_folder(called, removal.app)
    if done.already:
        yield Already(f"{app} was removed {instants.when(removal.time_ms)}, by {removal.by}")
    else:
        stages, versions = (len(removal.stages), "stage"), (what.versions, "version")
        counted = (stages, versions, (what.ssts, "SST"), (what.snapshots, "snapshot"))
        counts = ", ".join(plural(number, noun) for number, noun in counted)
        yield f"{verb} {app}: {counts}; {plural(what.objects, 'object')}, {size(what.bytes)}"
    for kind, names in (("topics", ", ".join(removal.topics)), ("consumer groups", ", ".join(groups))):
        if names and topics:
            yield f"{verb} from Kafka its {kind} {names}"
        elif names:
            yield f"left in Kafka are its {kind} {names}: --topics removes them"
    return asdict(done) | {"groups": groups}


_TOPICS = {
    "input": "yours",
    "channel": "between stages",
    "sink's own topic": "a sink's, inside",
    "sink's topic": "a sink's",
}


@operation
def forgot(done: Forgot, of: str, *, dry_run: bool) -> Words:
    """What was taken out of an app that is called so, or would be, and what that does not reach."""
    keys = plural(done.keys, "key")

    def called(app: str) -> str:
        return of if app == done.app else app

    if dry_run:
        yield Title(f"would forget {keys} in {of}: {plural(len(done.held), 'object')} to rewrite, {_bytes(done.held)}")
        yield from _gone(done.gone)
        yield from _held(done.held)
    else:
        yield Title(f"forgot {keys} in {of}: {plural(done.rows, 'stored row')} and records")
        what = f"{size(done.read_bytes)} held one; {size(done.written_bytes)} in their place"
        yield f"{what}; {plural(done.deleted, 'object')} deleted"
        yield from _gone(done.gone)
        for app, stage, version in done.versions:
            where = f"{called(app)}/{stage} v{version}"
            yield f"{where} says so; all versions before it read as if the key had never been there"
    if others := done.apps[1:]:
        yield f"its clones, too: {', '.join(others)}"
    for app, name in done.snapshots:
        yield f"snapshot {called(app)}@{name} was edited"
    for each in done.unnamed:
        yield f"{each.object} holds one, and is named by nothing: gc takes it, unless a batch under way names it"
    yield from _unread(done.unread)
    yield from _unproved(done.unproved)
    if done.others:
        yield Remark(
            f"other tables: {', '.join(done.others)}. What they have of the same person goes by their keys: --key "
            f"TABLE=KEY for each"
        )
    yield ""
    yield from _reach(done.out_of_reach)
    if not dry_run:
        yield "look: ", NextCommand(f"slackwater verify {of} --forgotten --key TABLE=KEY")
    return asdict(done)


def looked(found: Looked, of: str) -> Result:
    """What of an app that is called so, and of its clones, holds a key, or may; it fails if anything does."""
    return Result(asdict(found), *_looked(found, of), failed=bool(found.held or found.unproved))


def _looked(found: Looked, of: str) -> Iterator[Block]:
    keys, where = plural(found.keys, "key"), ", ".join((of, *found.apps[1:]))
    if found.held:
        yield Title(f"{plural(len(found.held), 'object')} of {where} hold one of {keys}, {_bytes(found.held)}")
        yield from _held(found.held)
        yield from _unread([each for each in found.held if each.what == UNREAD])
        if any(each.what != UNREAD for each in found.held):
            yield "take them out: ", NextCommand(f"slackwater forget {of} --key TABLE=KEY")
    elif found.unproved:
        records = plural(sum(each.records for each in found.unproved), "record")
        yield Title(f"not proved: nothing of {where} was found to hold any of {keys}, and {records} cannot be told")
    else:
        yield Title(f"nothing of {where} holds any of {keys}")
    yield from _unproved(found.unproved)
    if found.elsewhere:
        objects = plural(len(found.elsewhere), "object")
        yield f"a key is a value of other fields, as of somebody else's rows, in {objects}:"
        yield from _held(found.elsewhere)
    how = (
        "all of them decoded in full"
        if found.deep
        else "by keys, and by the fields of records that lead to them; --deep decodes all of it"
    )
    yield f"looked into {plural(found.objects, 'object')}, {how}"
    yield ""
    yield from _reach(found.out_of_reach)


@result
def given_up(app: str, note: Forgetting) -> Words:
    """That a forget that broke off is nobody's any more."""
    yield f"gave up what {note.by} began {instants.when(note.time_ms)}: keys of {app} may be left in some objects"
    yield "whoever has the keys forgets them anew: ", NextCommand("slackwater forget")
    return {"app": app, "by": note.by, "time_ms": note.time_ms}


def _gone(gone: Sequence[GoneRows]) -> Iterator[Block]:
    """Rows and records by place and field."""
    if gone:
        rows = ((each.of, each.what, each.field, f"{each.rows:,}", f"{each.objects:,}") for each in gone)
        yield TableBlock.of(("of", "held as", "where it equals", ">rows", ">objects"), rows)


def _unread(unread: Sequence[Held]) -> Iterator[Block]:
    """Records between stages that bring a key back."""
    for each in unread:
        count = plural(sum(each.fields.values()), "record")
        yield (
            f"{each.object} has {count} of a key that no stage has read yet ({', '.join(each.fields)}): they bring it "
            "back; forget it again when they are read"
        )


def _unproved(unproved: Sequence[Unproved]) -> Iterator[Block]:
    """Records of which nobody can tell."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for each in unproved:
        had = counts.setdefault((each.table, each.what, each.why), [0, 0])
        had[0] += each.records
        had[1] += 1
    if counts:
        rows = ((*place, f"{records:,}", f"{objects:,}") for place, (records, objects) in sorted(counts.items()))
        yield TableBlock.of(("not proved: of", "held as", "", ">records", ">objects"), rows)


def _bytes(held: Iterable[Held]) -> str:
    return size(sum(each.bytes for each in held))


def _held(held: Sequence[Held]) -> Iterator[Block]:
    rows = ((each.object, each.what, each.table or "-", size(each.bytes)) for each in held[:MOST_SHOWN])
    if held:
        yield TableBlock.of(("object", "holds it as", "of", ">size"), rows)
    if (more := len(held) - MOST_SHOWN) > 0:
        yield f"and {plural(more, 'more object')}; --json gives all"


def _reach(found: Sequence[OutOfReach]) -> Iterator[Block]:
    """What nobody can look into from here."""
    topics = [each for each in found if each.what in _TOPICS]
    if topics:
        rows = ((each.name, _TOPICS[each.what], _passes(each)) for each in topics)
        yield TableBlock.of(("not in reach: topic", "", "a record passes"), rows)
    if any(each.what == "input" for each in topics):
        yield "what stands in topics of yours comes again with whatever reads the past from there, such as a rewind"
    if deep := [each.name for each in found if each.what == "deep clone"]:
        yield f"deep clones have it for themselves, forget it there, too: {', '.join(deep)}"
    others = [each.name for each in found if each.what not in _TOPICS and each.what != "deep clone"]
    yield f"nor are: {'; '.join(others)}"


def _passes(each: OutOfReach) -> str:
    if each.retention_ms is None:
        return "when the topic says (retention.ms): nobody could be asked"
    if each.retention_ms >= 0:
        return f"{duration(each.retention_ms)} after it was written, with its segment"
    return "when it is published" if each.what == "sink's own topic" else "never: delete it in Kafka"


_OF_TOKEN = ("name", "apps", "tables", "verbs", "per_s", "until_ms", "created_ms", "by", "message")


@operation
def token_added(token: Token, sent: str, *, dry_run: bool) -> Words:
    """A token that was made: the one place where it is told."""
    what = f"{', '.join(token.verbs)} of {', '.join(token.apps)}, tables {', '.join(token.tables)}"
    if dry_run:
        yield f"would make token {token.name}: {what}"
        return fields(token, *_OF_TOKEN, token="")
    yield Title(f"token {token.name}: {what}")
    if sent:
        yield "it is shown here once, and kept nowhere:"
        yield Name(sent)
    else:
        yield f"for whoever comes with a certificate of the common name {token.name}"
    return fields(token, *_OF_TOKEN, token=sent)


def tokens(found: Sequence[Token]) -> Result:
    """The tokens of a store."""
    rows = (
        (
            each.name,
            ", ".join(each.verbs),
            ", ".join(each.apps),
            ", ".join(each.tables),
            "" if each.digest else "certificate",
            instants.when(each.created_ms),
            instants.iso(each.until_ms) if each.until_ms else "",
            each.by,
        )
        for each in found
    )
    table = TableBlock.of(("name", "may", "apps", "tables", "", "made", "until", "by"), rows)
    none = "this store has no token; `slackwater token add NAME --app APP` makes one"
    return Result([fields(each, *_OF_TOKEN) for each in found], table if found else none)


@operation
def token_removed(token: Token, *, dry_run: bool) -> Words:
    """A token that went."""
    yield f"{'would remove' if dry_run else 'removed'} token {token.name}; it ends within 5 s"
    return fields(token, "name")
