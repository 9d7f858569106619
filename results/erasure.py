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

_TOPICS = {
    "input": "yours",
    "channel": "between stages",
    "sink's own topic": "a sink's, inside",
    "sink's topic": "a sink's",
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
        yield f"its clones, too: {', '.join(others)}"
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
