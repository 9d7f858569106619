"""What was forgotten, what holds a key, and what is out of reach, as they are shown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from .. import instants
from ..keep.forget.forget import Forgot, Looked
from ..keep.forget.held import Held
from ..keep.forget.reach import OutOfReach
from ..store.versions.forgotten import Forgetting
from .document import Block, Remark, TableBlock, Title
from .formats import MOST_SHOWN, duration, plural, size
from .shown import Result, Words, result

_WHAT = {
    "input": "is yours: what stands there comes again with whatever reads the past, such as a rewind",
    "channel": "is between stages: what was read is read no more, but by clones and rewinds",
    "sink's own topic": "is emptied as its rows are published",
    "sink": "was read by whoever reads it",
    "deep clone": "has all for itself: forget the key there, too",
    "handed out": "nobody knows where they are",
    "replica": "",
    "cache": "",
}


@result
def forgot(done: Forgot, flags: str) -> Words:
    """What was taken out, or would be, and what that does not reach."""
    keys, of = plural(done.keys, "key"), done.app
    if done.dry_run:
        yield Title(f"would forget {keys} in {of}: {plural(len(done.held), 'object')} to rewrite, {_bytes(done.held)}")
        yield from _held(done.held)
    else:
        yield Title(f"forgot {keys} in {of}: {plural(done.rows, 'stored row')} and records")
        what = f"{size(done.read_bytes)} held one; {size(done.written_bytes)} in their place"
        yield f"{what}; {plural(done.deleted, 'object')} deleted"
        for app, stage, version in done.versions:
            yield f"{app}/{stage} v{version} says so; all versions before it read as if the key had never been there"
    if others := done.apps[1:]:
        yield f"it is of its clones, too: {', '.join(others)}"
    for app, name in done.snapshots:
        yield f"snapshot {app}@{name} was edited"
    for each in done.unnamed:
        yield f"{each.object} holds one, and is named by nothing: gc takes it, unless a batch under way names it"
    if done.others:
        yield Remark(
            f"other tables: {', '.join(done.others)}. What they have of the same person goes by their keys: --key "
            f"TABLE=KEY for each"
        )
    yield ""
    yield from _reach(done.out_of_reach)
    if done.dry_run:
        yield "nothing was changed (--dry-run)"
    else:
        yield f"look: slackwater verify {of} --forgotten --key TABLE=KEY{flags}"
    return asdict(done)


def looked(found: Looked, flags: str) -> Result:
    """Whether anything holds a key any more; it fails if so."""
    return Result(asdict(found), *_looked(found, flags), failed=bool(found.held))


def _looked(found: Looked, flags: str) -> Iterator[Block]:
    keys, where = plural(found.keys, "key"), ", ".join(found.apps)
    if found.held:
        yield Title(f"{plural(len(found.held), 'object')} of {where} hold one of {keys}, {_bytes(found.held)}")
        yield from _held(found.held)
        if any(each.what not in ("a value", "a text") for each in found.held):
            yield f"take them out: slackwater forget {found.app} --key TABLE=KEY{flags}"
    else:
        yield Title(f"nothing of {where} holds any of {keys}")
    how = (
        "all of them decoded in full" if found.deep else "by keys and what stands in records; --deep decodes all of it"
    )
    yield f"looked into {plural(found.objects, 'object')}, {how}"
    yield ""
    yield from _reach(found.out_of_reach)


@result
def given_up(app: str, note: Forgetting) -> Words:
    """That a forget that broke off is nobody's any more."""
    yield f"gave up what {note.by} began {instants.when(note.time_ms)}: keys of {app} may be left in some objects"
    yield "whoever has the keys forgets them anew: slackwater forget"
    return {"app": app, "by": note.by, "time_ms": note.time_ms}


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
    rows = ((each.name, each.what, _when(each) or _WHAT[each.what]) for each in found)
    yield TableBlock.of(("out of reach", "", ""), rows)


def _when(each: OutOfReach) -> str:
    if each.what not in ("input", "channel", "sink's own topic"):
        return ""
    if each.what == "sink's own topic" and each.retention_ms == -1:
        return _WHAT[each.what]
    if each.retention_ms is None:
        passes = "kept for as long as the topic says (retention.ms), which nobody could be asked"
    elif each.retention_ms < 0:
        passes = "kept for ever: delete the records in Kafka, or the topic"
    else:
        passes = f"passes {duration(each.retention_ms)} after it was written, with its segment"
    return f"{passes}; it {_WHAT[each.what]}"
