"""The content of a page: outlines of versions, and the objects that these versions name, by interval.

Pure. An *outline* is a manifest that has only the fields for searches by time, garbage collection and time lines. A
page lists an object once for each range of consecutive versions that name the object. So the size of a page depends on
the objects of its first version and on the changes since.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from .. import checks, limits
from ..checks import Violation
from ..entries.ssts import Leaf, Ssts
from ..kinds import VersionKind
from ..manifest import Input, Manifest, Program

BLOCK = 4_096
"""Largest number of versions of a page. The range of a page does not cross a multiple of it."""


class _Objects(Struct, frozen=True):
    ssts: Ssts = Ssts()


class VersionIdentity(Struct, frozen=True):
    """Fields of a manifest that distinguish its version from every other version."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    epoch: limits.Epoch
    writer: limits.ShortText
    time_ms: limits.TimeMs


class VersionParts(VersionIdentity, frozen=True):
    """The fields of a manifest that a page contains."""

    kind: VersionKind
    inputs: dict[limits.Topic, Input] = {}
    program: Program | None = None
    migration: limits.Seq = 0
    ssts: Ssts = Ssts()
    side_tables: dict[limits.Name, _Objects] = {}

    @property
    def tables(self) -> tuple[Ssts, ...]:
        return (self.ssts, *(side.ssts for side in self.side_tables.values()))


class _Shared(Struct, frozen=True, omit_defaults=True):
    """Fields that have equal values in many versions."""

    epoch: limits.Epoch
    writer: limits.ShortText
    kind: VersionKind
    migration: limits.Seq = 0
    program: Program | None = None
    inputs: tuple[tuple[limits.Topic, limits.NameOrNone], ...] = ()
    """Each input, with its upstream stage."""


class _Row(Struct, frozen=True, array_like=True):
    """One version of a page. Its number and time are stored as differences from the previous row.

    The first row stores the differences from the page's number and time.
    """

    number: limits.Count
    ms: limits.Count
    shared: limits.Count
    consumed: limits.Counts = ()
    """Consumed upstream version of each input."""
    rows: limits.Counts = ()
    """Rows that the version read from each input."""


class _Span(Struct, frozen=True, array_like=True):
    """An object that all rows from index `first` to index `last` name."""

    folder: limits.Count
    name: limits.Key
    first: limits.Count
    last: limits.Count


class _Folder(Struct, frozen=True, array_like=True):
    """Common prefix and suffix of objects' keys, and the objects' root."""

    prefix: limits.Key
    suffix: limits.ShortText
    root: limits.ShortText = ""


Identity: TypeAlias = tuple[int, int, str]
"""Time, epoch and writer of a version. No two versions in all stores have the same three values."""


class NamedObject(NamedTuple):
    """An object that a page's rows from `first` to `last` name. An empty `root` is the root of the manifests."""

    root: str
    key: str
    first: int
    last: int


class VersionPage(Struct, frozen=True, dict=True):
    """Outlines of versions of one stage, and the objects in the app's folder that they name. Versions may be missing.

    Objects have the names in the stored manifests: replacements by `forget` are not applied.
    """

    app: limits.Name
    stage: limits.Name
    first: limits.Version
    first_ms: limits.TimeMs
    shared: tuple[_Shared, ...]
    rows: tuple[_Row, ...]
    folders: tuple[_Folder, ...]
    spans: tuple[_Span, ...]

    @cached_property
    def numbers(self) -> Sequence[int]:
        """Versions of the rows, ascending."""
        return tuple(accumulate((row.number for row in self.rows[1:]), initial=self.first))

    @cached_property
    def times(self) -> Sequence[int]:
        """Commit times of the rows, in ms, ascending."""
        return tuple(accumulate((row.ms for row in self.rows[1:]), initial=self.first_ms))

    def outline(self, version: int) -> Manifest | None:
        """Return a manifest with only epoch, writer, time, kind, program, migration and progress of the inputs.

        Inputs have upstream stages and versions, and numbers of rows, but no offsets. Returns None if the page does not
        have the version.
        """
        at = bisect_left(self.numbers, version)
        if at == len(self.rows) or self.numbers[at] != version:
            return None
        row = self.rows[at]
        shared = self.shared[row.shared]
        inputs = {
            name: Input(name, (), upstream, consumed, rows)
            for (name, upstream), consumed, rows in zip(shared.inputs, row.consumed, row.rows, strict=True)
        }
        return Manifest(
            self.app,
            self.stage,
            version,
            shared.epoch,
            shared.writer,
            self.times[at],
            shared.kind,
            inputs,
            program=shared.program,
            migration=shared.migration,
        )

    def leaves(self, version: int, most: int) -> list[tuple[str, str]]:
        """Return pairs of root and key for the leaves of a version; none if it names more than `most` objects."""
        at = bisect_left(self.numbers, version)
        if at == len(self.rows) or self.numbers[at] != version:
            return []
        spans = [span for span in self.spans if span.first <= at <= span.last]
        if len(spans) > most:
            return []
        with_leaves = {number for number, folder in enumerate(self.folders) if folder.prefix.endswith("/leaves/")}
        named = self._objects(span for span in spans if span.folder in with_leaves)
        return [(leaf.root, leaf.key) for leaf in named]

    def objects(self) -> Iterator[NamedObject]:
        return self._objects(self.spans)

    def _objects(self, spans: Iterable[_Span]) -> Iterator[NamedObject]:
        for span in spans:
            folder = self.folders[span.folder]
            yield NamedObject(folder.root, f"{folder.prefix}{span.name}{folder.suffix}", span.first, span.last)


@checks.find_violations.register
def _(value: VersionPage) -> Iterator[Violation]:
    if not value.rows or (value.rows[0].number, value.rows[0].ms) != (0, 0):
        yield Violation("rows", value.rows[:1], "rows, of which the first is at 0")
    for number, row in enumerate(value.rows):
        if row.shared >= len(value.shared):
            yield Violation(f"rows[{number}].shared", row.shared, f"a number below {len(value.shared)}")
        elif {len(row.consumed), len(row.rows)} != {len(value.shared[row.shared].inputs)}:
            yield Violation(f"rows[{number}].consumed", row.consumed, "a number for each input, as in rows")
        if number and not (row.number and row.ms):
            yield Violation(f"rows[{number}]", (row.number, row.ms), "a later version at a later time")
    for number, span in enumerate(value.spans):
        if span.folder >= len(value.folders) or not span.first <= span.last < len(value.rows):
            yield Violation(f"spans[{number}]", (span.folder, span.first, span.last), "a folder and rows of the page")


def identity_of(manifest: Manifest | VersionIdentity) -> Identity:
    return manifest.time_ms, manifest.epoch, manifest.writer


def parts_of(manifest: Manifest) -> VersionParts:
    """Return the parts of a version for a page. Replacements by `forget` are not applied."""
    fields = {name: getattr(manifest, name) for name in VersionParts.__struct_fields__ if name != "side_tables"}
    return VersionParts(**fields, side_tables={name: _Objects(s.ssts) for name, s in manifest.side_tables.items()})


def build_page(versions: Iterable[VersionParts]) -> VersionPage:
    """Return a page of versions of a stage. There must be at least one version, and versions must ascend.

    Reads leaves that are not cached.
    """
    draft = None
    for parts in versions:
        draft = draft or _Draft(parts.app, parts.stage)
        draft.add(parts)
    if draft is None:
        raise ValueError("a page has at least one version")
    return draft.page()


def concat_pages(pages: Sequence[VersionPage]) -> VersionPage:
    """Return one page with all versions of `pages`.

    At least one page is needed. Pages must ascend, and no page may begin within the range of another page.
    """
    draft = _Draft(pages[0].app, pages[0].stage)
    for page in pages:
        draft.extend(page)
    return draft.page()


_Object: TypeAlias = tuple[str, str]
"""Root and key of an object."""


class _Draft:
    """Rows and spans of a page under construction."""

    def __init__(self, app: str, stage: str) -> None:
        self._app, self._stage, self._prefix = app, stage, f"{app}/"
        self._rows: list[tuple[int, int, _Shared, tuple[int, ...], tuple[int, ...]]] = []
        self._ended: list[tuple[_Object, int, int]] = []
        self._since: dict[_Object, int] = {}
        """Position of the first row of each object that the last row names."""
        self._holders: dict[int | Leaf, frozenset[_Object]] = {}
        """Objects that the last row names, by holder: the leaf, or the number of the table, that lists the objects."""
        self._counts = Counter[_Object]()
        """Number of holders (leaves or tables) of each object, because a merge may list one object in several leaves.
        """

    def add(self, parts: VersionParts) -> None:
        inputs = tuple((name, source.upstream) for name, source in parts.inputs.items())
        shared = _Shared(parts.epoch, parts.writer, parts.kind, parts.migration, parts.program, inputs)
        consumed = tuple(source.version for source in parts.inputs.values())
        rows = tuple(source.rows for source in parts.inputs.values())
        self._rows.append((parts.version, parts.time_ms, shared, consumed, rows))
        holders = self._holders_of(parts.tables)
        changed: set[_Object] = set()
        for holder in self._holders.keys() | holders.keys():
            old, new = self._holders.get(holder, frozenset()), holders.get(holder, frozenset())
            if old is not new:
                self._counts.subtract(old - new)
                self._counts.update(new - old)
                changed |= old ^ new
        self._holders = holders
        at = len(self._rows) - 1
        for named in changed:
            if self._counts[named] > 0:
                self._since.setdefault(named, at)
            else:
                del self._counts[named]
                if (since := self._since.pop(named, at)) < at:
                    self._ended.append((named, since, at - 1))

    def extend(self, page: VersionPage) -> None:
        start = len(self._rows)
        for number, time_ms, row in zip(page.numbers, page.times, page.rows, strict=True):
            self._rows.append((number, time_ms, page.shared[row.shared], row.consumed, row.rows))
        last = len(page.rows) - 1
        objects = [((root, key), first, end) for root, key, first, end in page.objects()]
        begins = {named for named, first, _ in objects if first == 0}
        before = {named: since for named, since in self._since.items() if named in begins}
        self._ended += ((named, since, start - 1) for named, since in self._since.items() if named not in begins)
        self._since = {}
        for named, first, end in objects:
            since = before[named] if first == 0 and named in before else start + first
            if end == last:
                self._since[named] = since
            else:
                self._ended.append((named, since, start + end))

    def page(self) -> VersionPage:
        last = len(self._rows) - 1
        spans = sorted([*self._ended, *((named, since, last) for named, since in self._since.items())])
        folders: dict[_Folder, int] = {}
        stored = []
        for (root, key), first, end in spans:
            path, _, file = key.rpartition("/")
            name, dot, suffix = file.partition(".")
            place = folders.setdefault(_Folder(f"{path}/", dot + suffix, root), len(folders))
            stored.append(_Span(place, name, first, end))
        shared: dict[_Shared, int] = {}
        rows = []
        earlier = self._rows[0][:2]
        for number, time_ms, common, consumed, counts in self._rows:
            place = shared.setdefault(common, len(shared))
            rows.append(_Row(number - earlier[0], time_ms - earlier[1], place, consumed, counts))
            earlier = number, time_ms
        first, first_ms = self._rows[0][:2]
        return VersionPage(
            self._app,
            self._stage,
            first,
            first_ms,
            tuple(shared),
            tuple(rows),
            tuple(folders),
            tuple(stored),
        )

    def _holders_of(self, tables: Iterable[Ssts]) -> dict[int | Leaf, frozenset[_Object]]:
        holders: dict[int | Leaf, frozenset[_Object]] = {}
        for number, ssts in enumerate(tables):
            holders[number] = self._own((sst.root, sst.object) for sst in ssts.inline)
            # Leaves are immutable, so only leaves that the previous version lacks are read.
            ssts.entries(leaf for leaf in ssts.leaves if leaf not in self._holders)
            for leaf in ssts.leaves:
                if (known := self._holders.get(leaf)) is None:
                    entries = ((sst.root, sst.object) for sst in ssts.entries((leaf,)))
                    known = self._own(((leaf.root, leaf.object), *entries))
                holders[leaf] = known
        return holders

    def _own(self, objects: Iterable[_Object]) -> frozenset[_Object]:
        return frozenset(named for named in objects if named[1].startswith(self._prefix))
