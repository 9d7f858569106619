"""What a stage had read at a version of it, and where it began: of users' topics, through the stages before it.

A repartition topic has no offsets of these; its writer has, at the version that was consumed. Only where the writer
keeps state it is the topic itself that was read: of the same records, a state may send other rows.
"""

from collections.abc import Callable, Iterator

from ...errors import Refused
from ...fold.fits import ANOTHER_STAGE
from ...moments.diff.versions import Versions
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Input, Manifest

Places = dict[str, Input]
"""By user's topic, or repartition topic of a stage with state, as declared."""


def positions(store: ObjectStore, at: Manifest) -> Places:
    """How far a version of a stage had read, by itself and by way of the stages before it.

    Raises `Refused` where a version on the way was collected, or a topic is read by two ways, each with a position of
    its own, and `Unavailable`.
    """

    def stands(name: str, source: Input) -> Places:
        return {name: source} if _is_read(store, at, source) else positions(store, _writer(store, at, source))

    return _through(at, stands)


def beginnings(store: ObjectStore, at: Manifest) -> tuple[Places, bool] | None:
    """Where the stage of a version began to read what that reads, in the same way; of a clone, where its source did.

    Repartition topics that its source began to read are another app's, and left out.

    With it, whether it began with nothing: a table that began with rows from elsewhere knows more. None where that was
    collected. Raises as `positions`.
    """
    known: list[bool] = []

    def began(name: str, source: Input) -> Places:
        first = _first_with(store, at, name)
        if first is None:
            raise _CollectedError
        known.append(first.kind != "init")
        begun = first.inputs[name]
        if not begun.upstream:
            return {name: begun}
        if _is_read(store, at, source):
            return {name: begun} if first.app == at.app else {}
        if begun.version and history.first_version(store, first.app, begun.upstream) < begun.version:
            return positions(store, _writer(store, first, begun))
        writer = history.head(store, first.app, source.upstream)
        found = beginnings(store, writer) if writer is not None else ({}, True)
        if found is None:
            raise _CollectedError
        known.append(found[1])
        return found[0]

    try:
        return _through(at, began), all(known)
    except _CollectedError:
        return None


class _CollectedError(Exception):
    """The version was collected at which a stage began."""


def _is_read(store: ObjectStore, at: Manifest, source: Input) -> bool:
    """Whether an input is what is read, and not what its writer had read."""
    writer = history.head(store, at.app, source.upstream) if source.upstream else None
    return not source.upstream or (writer is not None and writer.table is not None)


def _through(at: Manifest, of: Callable[[str, Input], Places]) -> Places:
    found: Places = {}
    for name, source in sorted(at.inputs.items()):
        more = of(name, source)
        if twice := sorted(found.keys() & more.keys()):
            raise Refused(
                f"topic {twice[0]!r} comes to {at.stage} by two ways, and stands at other offsets on each",
                hint=ANOTHER_STAGE,
            )
        found |= more
    return found


def read_through(store: ObjectStore, at: Manifest) -> Iterator[Manifest]:
    """A version of a stage, and those of the stages without state before it whose rows it had read.

    Raises `Refused` where one of them was collected, and `Unavailable`.
    """
    yield at
    for source in at.inputs.values():
        if not _is_read(store, at, source):
            yield from read_through(store, _writer(store, at, source))


def _writer(store: ObjectStore, at: Manifest, source: Input) -> Manifest:
    """The version of a channel's writer that `at` consumed last; its first, if none was."""
    number = source.version or history.first_version(store, at.app, source.upstream)
    found = history.find(store, at.app, source.upstream, number) if number else None
    if found is None:
        raise Refused(
            f"v{number} of {source.upstream}, up to which {at.stage} v{at.version} had read, was collected: nobody "
            "knows where in the topics that is",
            hint=f"with --from, name a later moment; else {ANOTHER_STAGE}",
        )
    return found


def _first_with(store: ObjectStore, at: Manifest, name: str) -> Manifest | None:
    """The version with which the stage began to read an input; None when that was collected."""
    versions = Versions(store, at.app, at.stage)
    # Of a version that is planned and not there, the newest.
    last = min(versions.from_number(at.version), len(versions) - 1)
    if last < 0 or name not in versions[last].inputs:
        return at
    place = versions.first_where(0, last, lambda each: name in each.inputs)
    first = versions[place]
    if first.version == 1 or (place and first.kind in ("claim", "migration") and not versions.is_gap(place)):
        return first
    if first.kind == "rename":
        former = first.formerly[-1]
        last_so_called = history.find(store, at.app, former.stage, former.version)
        return _first_with(store, last_so_called, name) if last_so_called is not None else None
    info = apps.find_app(store, at.app) if first.kind == "clone" else None
    if info is None or info.origin is None or info.origin.topics:
        return None
    source = store.at(info.origin.root)
    origin = history.find(source, info.origin.app, at.stage, first.version)
    return _first_with(source, origin, name) if origin is not None else None
