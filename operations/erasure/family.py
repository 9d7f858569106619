"""The apps that have the same SSTs: one, its clones, and theirs, under whatever roots."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, Refused, Usage
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import list_snapshots
from ...snapshot.query.columns import parse_keys
from ...snapshot.query.key_text import key_of
from ...snapshot.under_way.exclusion import Intent, UnderWay, check_exclusion, clone_lives, shared
from ...store.objects.protocol import ObjectStore
from ...store.sst.hashing import hash_keys
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, owner, table_name

_SHAPE = "TABLE=KEY, with a JSON array for a key of several columns"
_MOST = 1_000_000
"""Keys that are forgotten at once: all of them are in memory."""


@dataclass(frozen=True, slots=True)
class KeysAsked:
    """Keys to be forgotten, as they were typed."""

    tables: Mapping[str, tuple[tuple[object, ...] | str, ...]]
    """By table; text where the number of the key's columns is not known yet."""
    also: tuple[str, ...] = ()
    """Other values of the same keys, of each of these tables: what a program makes keys of, such as another case."""

    @classmethod
    def of(cls, keys: Iterable[str], files: Iterable[Path] = (), also: Iterable[str] = ()) -> "KeysAsked":
        """From `TABLE=KEY` each, files with one of these a line, and other values of these keys. Raises `Usage`."""
        lines = [*keys, *(line for file in files for line in _lines(file))]
        found: dict[str, dict[tuple[object, ...] | str, None]] = {}
        for line in lines:
            table, equals, key = line.partition("=")
            if not (table and equals):
                raise Usage("a key to be forgotten has no table, or no '='", hint=f"expected {_SHAPE}")
            found.setdefault(table, {})[key] = None
        return cls._checked(found, also)

    @classmethod
    def of_values(cls, keys: Mapping[str, Iterable[object]], also: Iterable[str] = ()) -> "KeysAsked":
        """From Python's own values, by table; a tuple for a key of several columns. Raises `Usage`."""
        return cls._checked(
            {
                table: {each if isinstance(each, tuple) else (each,): None for each in some}
                for table, some in keys.items()
            },
            also,
        )

    @classmethod
    def _checked(cls, found: Mapping[str, Mapping[tuple[object, ...] | str, None]], also: Iterable[str]) -> "KeysAsked":
        count = sum(map(len, found.values()))
        if not count:
            raise Usage("there is no key to be forgotten", hint=f"--key {_SHAPE}, or --keys FILE with one a line")
        if count > _MOST:
            raise Usage(f"{count:,} keys are more than are forgotten at once", hint=f"at most {_MOST:,}")
        return cls({table: tuple(some) for table, some in found.items()}, tuple(dict.fromkeys(also)))

    def digest(self, salt: str) -> str:
        """Tells whether somebody asks for the same keys again, to whoever has them and the salt."""
        typed = [*sorted((table, sorted(map(repr, some))) for table, some in self.tables.items()), sorted(self.also)]
        return blake2b(repr(typed).encode(), key=bytes.fromhex(salt), digest_size=32).hexdigest()

    def values(self, name: str, table: Table) -> list[Sequence[object]]:
        """The values of each key of a table. Raises `Usage` where a text is not as many, or not of its types."""
        keys = [each if isinstance(each, tuple) else key_of(name, table, each) for each in self.tables[name]]
        for text in self.also:
            try:
                value = key_of(name, table, text)
                parse_keys(name, table, [value])
            except Usage:
                if len(self.tables) == 1:
                    raise
                continue  # it is of another table
            keys.append(value)
        return keys


def _lines(file: Path) -> Iterator[str]:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"cannot read {file} as text: {error}") from error
    # Ends of lines have become "\n" by now; a key may have others of those that `splitlines` takes for one.
    return filter(None, text.split("\n"))


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one table, as look-ups take them."""

    names: tuple[str, ...]
    hashes: npt.NDArray[np.int64]
    """Ascending."""
    rows: pa.Table
    """The key columns, in the order of the hashes."""

    @classmethod
    def of(cls, name: str, table: Table, asked: KeysAsked) -> "Keys":
        """Raises `Usage` where a value is not of its column's type."""
        rows = parse_keys(name, table, asked.values(name, table))
        hashes = hash_keys(rows, rows.schema.names)
        order = np.argsort(hashes, kind="stable")
        return cls(tuple(rows.schema.names), hashes[order], rows.take(pa.array(order)).combine_chunks())


@dataclass(frozen=True, slots=True)
class Member:
    """One of the apps."""

    store: ObjectStore
    """At the app's root."""
    app: str
    heads: Mapping[str, Manifest]

    @property
    def name(self) -> str:
        """The app, and its root where several may be meant."""
        return f"{self.app} under {self.store.url}"

    def tables(self, asked: KeysAsked) -> dict[str, str]:
        """By stage, as its folder is called, under which name the keys of its table are asked for.

        A stage that was renamed has SSTs and versions under each of its names.
        """
        found: dict[str, str] = {}
        for head in self.heads.values():
            names = [*(each.stage for each in head.formerly), head.stage, *([head.called] if head.called else [])]
            for name in names:
                if name in asked.tables:
                    found |= dict.fromkeys((each for each in names if each in self.heads), name)
        return found

    def sides(self, asked: KeysAsked) -> dict[tuple[str, str], str]:
        """The same for tables beside those of queries, which have keys of their own: by stage and name behind that."""
        each = ((stage, side, table_name(stage, side)) for stage, head in self.copies for side in head.side_tables)
        return {(stage, side): name for stage, side, name in each if name in asked.tables}

    @property
    def copies(self) -> list[tuple[str, Manifest]]:
        """The stages that are copies of what a query of Spark's keeps."""
        return [(stage, head) for stage, head in self.heads.items() if head.attached is not None]


def family_of(store: ObjectStore, app: str) -> tuple[Member, ...]:
    """The app, and all that live from it, each behind those that it lives from.

    Raises `NotFound` where there is no such app, `Refused` where it lives from another one itself, or a clone is being
    made, and `Unavailable`, also where a clone's root cannot be reached: it has to be, as what it shares is rewritten.
    """
    apps.read_app(store, app)
    me = _member(store, app)
    _check_lives_from_none(me)
    found, waiting = {(store.url, app): me}, [me]
    while waiting:
        for clone in _clones(waiting.pop(0)):
            place = (clone.store.url, clone.app)
            found.pop(place, None)  # it lives from this one, too: it comes behind it, and so do its own
            found[place] = clone
            waiting.append(clone)
    return tuple(found.values())


def _member(store: ObjectStore, app: str) -> Member:
    return Member(store, app, heads_of(store, app, history.list_stages(store, app)))


def _clones(of: Member) -> Iterator[Member]:
    pins = [pin for pin in list_snapshots(of.store, of.app) if pin.kind == "clone"]
    living = {(pin.clone_root, pin.clone) for pin in pins if clone_lives(of.store, pin)}
    check_exclusion(of.store, of.app, Intent.FORGET, UnderWay.CLONING)
    for root in sorted({"", *(pin.clone_root for pin in pins)}):
        where = of.store.at(root)
        for other, objects in shared(of.store, of.app, root):
            # One that has merged all that it shared has the rows all the same.
            if objects or (root, other) in living:
                yield _member(where, other)


def _check_lives_from_none(me: Member) -> None:
    others: dict[str, str] = {}
    for stage in me.heads:
        # Of all versions that are left, the oldest names the most of another app.
        for version in history.versions(me.store, me.app, stage)[:1]:
            for sst in all_ssts(history.read(me.store, me.app, stage, version)):
                owner = sst.object.partition("/")[0]
                if owner != me.app or sst.root not in ("", me.store.url):
                    others[owner] = sst.root
    for owner, root in others.items():
        where = f" under {root}" if root else ""
        raise Refused(
            f"app {me.app!r} shares SSTs with {owner!r}{where}, from which it was cloned: forgotten here alone, the "
            "key would still be there",
            hint=f"forget it in {apps.called(me.store.at(root)).get(owner, owner)}: its clones are part of that",
        )


def check_tables(me: Member, asked: KeysAsked) -> None:
    """Raise `NotFound` where an app had no table of that name, and `Refused` for one of rejected records."""
    has = {head.stage for head in me.heads.values() if head.table is not None}
    has |= {table_name(stage, side) for stage, head in me.copies for side in head.side_tables}
    was = {each.stage for head in me.heads.values() for each in head.formerly if head.table is not None}
    for table in asked.tables:
        if table not in has and (stage := owner(table, me.heads)) != table:
            raise Refused(
                f"{table} is a table beside that of {stage}, as of rejected records, which are no rows of a person: "
                "they are found by the keys themselves",
                hint="give the key of the stage's own table",
            )
        if table not in has | was:
            raise NotFound(f"table of app {me.app!r}", table, sorted(has))
