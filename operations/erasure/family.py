"""Family of an app (the app and its clones in all roots, which share SSTs), and the keys requested for erasure."""

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
from ...snapshot.query.key_text import parse_key_text
from ...snapshot.under_way.exclusion import AppCondition, Intent, apps_sharing_objects, check_exclusion, clone_exists
from ...store.objects.protocol import ObjectStore
from ...store.sst.hashing import hash_keys
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, find_owner, table_name

_KEY_FORMAT = "TABLE=KEY, with a JSON array for a key of several columns"
_MAX_KEYS = 1_000_000
"""Maximum number of keys of one call, because all keys are in memory."""


@dataclass(frozen=True, slots=True)
class RequestedKeys:
    """Keys that a user requests to be forgotten."""

    tables: Mapping[str, tuple[tuple[object, ...] | str, ...]]
    """Keys by table. A key is unparsed text, or a tuple with the values of the key columns."""
    other_spellings: tuple[str, ...] = ()
    """Other spellings of the keys, such as upper case, that the program turns into a key of any table."""

    @classmethod
    def parse(cls, keys: Iterable[str], files: Iterable[Path] = (), also: Iterable[str] = ()) -> "RequestedKeys":
        """Parse keys from `TABLE=KEY` arguments, and from files that have one `TABLE=KEY` per line.

        `also` has other spellings of the keys. Raises `Usage`.
        """
        lines = [*keys, *(line for file in files for line in _lines(file))]
        keys_by_table: dict[str, dict[tuple[object, ...] | str, None]] = {}
        for line in lines:
            table, equals, key = line.partition("=")
            if not (table and equals):
                raise Usage("a key to forget lacks its table, or the '='", hint=f"expected {_KEY_FORMAT}")
            keys_by_table.setdefault(table, {})[key] = None
        return cls._checked(keys_by_table, also)

    @classmethod
    def from_values(cls, keys: Mapping[str, Iterable[object]], also: Iterable[str] = ()) -> "RequestedKeys":
        """Create from Python values by table. A key of several columns is a tuple. Raises `Usage`."""
        return cls._checked(
            {table: {key if isinstance(key, tuple) else (key,): None for key in some} for table, some in keys.items()},
            also,
        )

    @classmethod
    def _checked(
        cls, keys_by_table: Mapping[str, Mapping[tuple[object, ...] | str, None]], also: Iterable[str]
    ) -> "RequestedKeys":
        count = sum(map(len, keys_by_table.values()))
        if not count:
            raise Usage("no key to forget was given", hint=f"--key {_KEY_FORMAT}, or --keys FILE with one a line")
        if count > _MAX_KEYS:
            raise Usage(f"{count:,} keys are too many for one call", hint=f"at most {_MAX_KEYS:,}")
        return cls({table: tuple(some) for table, some in keys_by_table.items()}, tuple(dict.fromkeys(also)))

    def digest(self, salt: str) -> str:
        """Return a salted hash of the keys. A later call compares hashes to recognise a request for the same keys."""
        typed = [
            *sorted((table, sorted(map(repr, some))) for table, some in self.tables.items()),
            sorted(self.other_spellings),
        ]
        return blake2b(repr(typed).encode(), key=bytes.fromhex(salt), digest_size=32).hexdigest()

    def values(self, name: str, table: Table) -> list[Sequence[object]]:
        """Return the column values of each requested key of a table.

        Raises `Usage` for a wrong number or type of values.
        """
        keys = [key if isinstance(key, tuple) else parse_key_text(name, table, key) for key in self.tables[name]]
        for text in self.other_spellings:
            try:
                value = parse_key_text(name, table, text)
                parse_keys(name, table, [value])
            except Usage:
                if len(self.tables) == 1:
                    raise
                continue  # the value is for another table
            keys.append(value)
        return keys


def _lines(file: Path) -> Iterator[str]:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"cannot read {file} as text: {error}") from error
    # Lines end with "\n" here; a key may contain other characters at which `splitlines` would split.
    return filter(None, text.split("\n"))


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Requested keys of one table, sorted by hash."""

    names: tuple[str, ...]
    hashes: npt.NDArray[np.int64]
    """Hashes of the keys, ascending."""
    rows: pa.Table
    """Key columns of the keys, in the order of `hashes`."""

    @classmethod
    def for_table(cls, name: str, table: Table, requested: RequestedKeys) -> "HashedKeys":
        """Parse and hash the requested keys of a table. Raises `Usage` if a value does not have its column's type."""
        rows = parse_keys(name, table, requested.values(name, table))
        hashes = hash_keys(rows, rows.schema.names)
        order = np.argsort(hashes, kind="stable")
        return cls(tuple(rows.schema.names), hashes[order], rows.take(pa.array(order)).combine_chunks())


@dataclass(frozen=True, slots=True)
class Member:
    """One app of a family: the original app, or one of its clones."""

    store: ObjectStore
    app: str
    heads: Mapping[str, Manifest]

    @property
    def name(self) -> str:
        return f"{self.app} under {self.store.url}"

    def requested_tables(self, requested: RequestedKeys) -> dict[str, str]:
        """Return the requested table names by stage folder. A renamed stage has several folders."""
        names_by_folder: dict[str, str] = {}
        for head in self.heads.values():
            names = [*(former.stage for former in head.formerly), head.stage, *([head.called] if head.called else [])]
            for name in names:
                if name in requested.tables:
                    names_by_folder |= dict.fromkeys((folder for folder in names if folder in self.heads), name)
        return names_by_folder

    def requested_side_tables(self, requested: RequestedKeys) -> dict[tuple[str, str], str]:
        """Return the names of requested side tables of attached stages, by stage and side table."""
        side_tables = (
            (stage, side, table_name(stage, side)) for stage, head in self.attached_stages for side in head.side_tables
        )
        return {(stage, side): name for stage, side, name in side_tables if name in requested.tables}

    @property
    def attached_stages(self) -> list[tuple[str, Manifest]]:
        return [(stage, head) for stage, head in self.heads.items() if head.attached is not None]


def find_family(store: ObjectStore, app: str) -> tuple[Member, ...]:
    """Return the app and all its clones. An app precedes the clones that share its SSTs.

    Raises `NotFound` if the app does not exist; `Refused` if the app is a clone that shares another app's SSTs, or a
    clone of it is incomplete; `Unavailable` if a store does not answer. The roots of all clones must be reachable,
    because the SSTs of clones are rewritten, too.
    """
    apps.read_app(store, app)
    member = _member(store, app)
    _check_uses_no_other(member)
    members, waiting = {(store.url, app): member}, [member]
    while waiting:
        for clone in _clones(waiting.pop(0)):
            place = (clone.store.url, clone.app)
            members.pop(place, None)  # this app also uses the other app's files, so it comes later
            members[place] = clone
            waiting.append(clone)
    return tuple(members.values())


def _member(store: ObjectStore, app: str) -> Member:
    return Member(store, app, heads_of(store, app, history.list_stages(store, app)))


def _clones(source: Member) -> Iterator[Member]:
    pins = [pin for pin in list_snapshots(source.store, source.app) if pin.kind == "clone"]
    living = {(pin.clone_root, pin.clone) for pin in pins if clone_exists(source.store, pin)}
    check_exclusion(source.store, source.app, Intent.FORGET, AppCondition.CLONING)
    for root in sorted({"", *(pin.clone_root for pin in pins)}):
        where = source.store.at(root)
        for other, objects in apps_sharing_objects(source.store, source.app, root):
            # A clone may have rewritten all shared files, but it still has the rows.
            if objects or (root, other) in living:
                yield _member(where, other)


def _check_uses_no_other(member: Member) -> None:
    owners: dict[str, str] = {}
    for stage in member.heads:
        # The oldest remaining version names the most files of another app.
        for version in history.list_versions(member.store, member.app, stage)[:1]:
            for sst in all_ssts(history.read(member.store, member.app, stage, version)):
                owner = sst.object.partition("/")[0]
                if owner != member.app or sst.root not in ("", member.store.url):
                    owners[owner] = sst.root
    for owner, root in owners.items():
        where = f" under {root}" if root else ""
        raise Refused(
            f"app {member.app!r} is a clone that still uses files of {owner!r}{where}: forgotten only here, the key "
            "would remain there",
            hint=f"forget it in {apps.promoted_names(member.store.at(root)).get(owner, owner)}: that includes its "
            f"clones",
        )


def check_tables(member: Member, requested: RequestedKeys) -> None:
    """Raise `NotFound` if the app never had a requested table, and `Refused` for a table of rejected records."""
    current = {head.stage for head in member.heads.values() if head.table is not None}
    current |= {table_name(stage, side) for stage, head in member.attached_stages for side in head.side_tables}
    previous = {former.stage for head in member.heads.values() for former in head.formerly if head.table is not None}
    for table in requested.tables:
        if table not in current and (stage := find_owner(table, member.heads)) != table:
            raise Refused(
                f"{table} is a side table of {stage}, such as that of rejected records: its rows are found by the keys "
                f"of {stage}",
                hint=f"give the key of the stage's own table: --key {stage}=KEY",
            )
        if table not in current | previous:
            raise NotFound(f"table of app {member.app!r}", table, sorted(current))
