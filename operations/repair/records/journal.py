"""Journal of the repairs of an app: removed records, and replaced records with checksums of their new values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_128_hexdigest

from ....errors import NotFound, Refused
from ....snapshot.bisect.verdict import RecordLocation
from ....store.objects.protocol import ObjectStore
from ....store.sst.hashing import hash_keys
from ....store.versions import keys, limits
from ....store.versions.codec import JsonFolder
from ....store.versions.manifest import Manifest
from .plan import Seeds, Substitute, Substitutes


class Repair(Struct, frozen=True):
    """Repair of an app. The values of replaced records are not stored, so that `forget` need not search them."""

    id: limits.Ulid
    by: limits.ShortText
    created_ms: limits.TimeMs
    dropped: tuple[limits.ShortText, ...]
    replaced: dict[limits.ShortText, limits.Checksum]
    """Checksum of the new value of each replaced record."""
    since: dict[limits.Name, limits.Version] = {}
    """Version up to which the original records stay in effect, by stage."""
    state: Literal["begun", "done", "undoing", "undone"] = "begun"
    versions: dict[limits.Name, limits.Version] = {}
    """Version of the repair, by changed stage."""
    touched: dict[limits.Name, tuple[limits.Hash, ...]] | None = None
    """Hashes of the keys that the repair followed, by stage; None for a repair in progress, or with very many keys."""
    undone: dict[limits.Name, limits.Version] = {}
    """Newest version after the undo, by changed stage."""

    @property
    def records(self) -> frozenset[str]:
        return frozenset((*self.dropped, *self.replaced))

    def meets(self, followed: Mapping[str, frozenset[int]]) -> bool:
        """Return True if the repair followed, or may have followed, one of these keys.

        `followed` has hashes by stage.
        """
        return self.touched is None or any(
            not followed[stage].isdisjoint(hashes) for stage, hashes in self.touched.items() if stage in followed
        )

    def is_in_force(self, heads: Mapping[str, Manifest]) -> bool:
        """Return False if a rewind has undone the repair, so that no head is based on a version of the repair."""
        committed = [(heads[stage], version) for stage, version in self.versions.items() if stage in heads]
        return not committed or any(
            version > head.version  # about to be committed
            or any(version in versions for versions in head.base_versions(version - 1, of_rows=True))
            for head, version in committed
        )

    @property
    def what(self) -> str:
        """Description of the repair for logs, in one line."""
        parts = [f"drop {', '.join(self.dropped)}"] if self.dropped else []
        parts += [f"replace {', '.join(self.replaced)}"] if self.replaced else []
        parts += (
            [f"as read after {', '.join(f'{at}@v{n}' for at, n in sorted(self.since.items()))}"] if self.since else []
        )
        return f"{'undo of ' if self.state == 'undoing' else ''}{'; '.join(parts)}"


REPAIRS = JsonFolder(Repair, keys.repairs, lambda repair: repair.id)
"""Repairs, oldest first.

Undone repairs are kept, because batches between a repair and its undo are based on rows of the repair.
"""


def standing_repairs(store: ObjectStore, app: str) -> list[Repair]:
    """Return the repairs that are not undone, oldest first."""
    return [repair for repair in REPAIRS.all(store, app) if repair.state != "undone"]


def seeds_of_undone(repairs: Iterable[Repair], begun: Seeds, seeds: Seeds) -> Seeds:
    """Return additional keys to follow from the version of an undone repair on.

    Keys that the plan followed first at a version between the repair and its undo are based on rows of the repair.

    Args:
        repairs: Repairs that were undone.
        begun: Keys that the plan followed, by stage and first version.
        seeds: Keys that earlier calls of this function returned.
    """
    further: dict[str, dict[int, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
    for stage, versions in begun.items():
        for repair in repairs:
            first, last = repair.versions.get(stage), repair.undone.get(stage, 0)
            for version, rows in versions.items():
                if first is not None and first < version <= last:
                    hashes = hash_keys(rows, rows.column_names)
                    is_new = ~np.isin(hashes, _hashes(seeds.get(stage, {}).get(first)))
                    if repair.touched is not None:
                        is_new &= np.isin(hashes, np.array(repair.touched.get(stage, ()), np.int64))
                    if is_new.any():
                        further[stage][first].append(rows.filter(pa.array(is_new)))
    return {stage: {at: pa.concat_tables(rows) for at, rows in tables.items()} for stage, tables in further.items()}


def joined_seeds(*parts: Seeds) -> Seeds:
    """Return the keys of all parts."""
    joined: dict[str, dict[int, pa.Table]] = defaultdict(dict)
    for seeds in parts:
        for stage, versions in seeds.items():
            for version, rows in versions.items():
                joined[stage][version] = pa.concat_tables(
                    [*([joined[stage][version]] if version in joined[stage] else []), rows]
                )
    return joined


def _hashes(rows: pa.Table | None) -> npt.NDArray[np.int64]:
    return hash_keys(rows, rows.column_names) if rows is not None else np.array([], np.int64)


def new_parts(
    repairs: Iterable[Repair],
    requested: Mapping[RecordLocation, bytes | None],
    are_same: Callable[[RecordLocation, Repair], bool],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the requested records that no repair in force covers: records to remove, and replaced ones with checksums.

    `are_same` returns True if a repair affects the requested reads of a record. Raises `Refused` if a repair in force
    treats one of the records differently.
    """
    in_force = {record: repair for repair in repairs for record in (*repair.dropped, *repair.replaced)}
    dropped, replaced = [], {}
    for record, value in requested.items():
        name, checksum = str(record), xxh3_128_hexdigest(value) if value is not None else ""
        earlier = in_force.get(name)
        if earlier is None and value is None:
            dropped.append(name)
        elif earlier is None:
            replaced[name] = checksum
        elif earlier.state == "undoing" or earlier.replaced.get(name, "") != checksum or not are_same(record, earlier):
            raise Refused(
                f"repair {earlier.id}, by {earlier.by}, is in force for {name}: {earlier.what}",
                hint="undo it first: slackwater repair APP --code FILE --undo",
            )
    return tuple(dropped), replaced


def substitutes_of(repairs: Iterable[Repair], values: Mapping[RecordLocation, bytes | None]) -> Substitutes:
    """Return the substitute of each record in these repairs. `values` has the values of replaced records.

    Raises `Refused` if `values` lacks the value of a replaced record.
    """
    result: dict[RecordLocation, Substitute] = {}
    for repair in repairs:
        for name in repair.dropped:
            result[RecordLocation.parse(name)] = Substitute(None, repair.since)
        for name, checksum in repair.replaced.items():
            value = values.get(record := RecordLocation.parse(name))
            if value is None or xxh3_128_hexdigest(value) != checksum:
                raise Refused(
                    f"repair {repair.id} replaced {name}, and the store has only the checksum of the new value",
                    hint=f"give the value again, from the same file: --replace '{name}=FILE'",
                )
            result[record] = Substitute(value, repair.since)
    return result


def repair_to_undo(app: str, repairs: Sequence[Repair]) -> Repair:
    """Return the repair in progress, or an interrupted repair, or else the newest repair.

    Raises `NotFound` without any.
    """
    if not repairs:
        raise NotFound(f"repair of {app}", "to undo", hint=f"`slackwater log {app} --operations` lists what was done")
    return ([repair for repair in repairs if repair.state != "done"] or [*repairs])[-1]
