"""Journal of the repairs of an app: which records they took out, and what they put in their place."""

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
    """Repair of an app. The values that replace records are not kept, so that a forget need not search them."""

    id: limits.Ulid
    by: limits.ShortText
    created_ms: limits.TimeMs
    dropped: tuple[limits.ShortText, ...]
    replaced: dict[limits.ShortText, limits.Checksum]
    """Checksum of the value in the place of each replaced record."""
    since: dict[limits.Name, limits.Version] = {}
    """By stage, the version up to which the records stay as they were read."""
    state: Literal["begun", "done", "undoing", "undone"] = "begun"
    versions: dict[limits.Name, limits.Version] = {}
    """Version of the repair, by changed stage."""
    touched: dict[limits.Name, tuple[limits.Hash, ...]] | None = None
    """Hashes of the keys that the repair followed, by stage; None if it is under way, or followed very many."""
    undone: dict[limits.Name, limits.Version] = {}
    """By changed stage, the newest version after the undo."""

    @property
    def records(self) -> frozenset[str]:
        return frozenset((*self.dropped, *self.replaced))

    def meets(self, followed: Mapping[str, frozenset[int]]) -> bool:
        """Return True if the repair followed one of these keys, or may have. `followed` has hashes by stage."""
        return self.touched is None or any(
            not followed[stage].isdisjoint(hashes) for stage, hashes in self.touched.items() if stage in followed
        )

    def is_in_force(self, heads: Mapping[str, Manifest]) -> bool:
        """Return False if a rewind has taken the repair's versions back: no head is based on one of them."""
        committed = [(heads[stage], version) for stage, version in self.versions.items() if stage in heads]
        return not committed or any(
            version > head.version  # about to be committed
            or any(version in versions for versions in head.base_versions(version - 1, of_rows=True))
            for head, version in committed
        )

    @property
    def what(self) -> str:
        """Line for logs."""
        parts = [f"drop {', '.join(self.dropped)}"] if self.dropped else []
        parts += [f"replace {', '.join(self.replaced)}"] if self.replaced else []
        parts += (
            [f"as read after {', '.join(f'{at}@v{n}' for at, n in sorted(self.since.items()))}"] if self.since else []
        )
        return f"{'undo of ' if self.state == 'undoing' else ''}{'; '.join(parts)}"


REPAIRS = JsonFolder(Repair, keys.repairs, lambda repair: repair.id)
"""Repairs, oldest first. Batches between a repair and its undo began with rows of the repair, so both are kept."""


def standing_repairs(store: ObjectStore, app: str) -> list[Repair]:
    """Return the repairs that are not undone, oldest first."""
    return [repair for repair in REPAIRS.all(store, app) if repair.state != "undone"]


def seeds_of_undone(repairs: Iterable[Repair], begun: Seeds, seeds: Seeds) -> Seeds:
    """Return further keys to follow from an undone repair on, because the version that they begin in has rows of it.

    Args:
        repairs: Repairs that were undone.
        begun: Keys that a plan followed, by stage and first version.
        seeds: Keys that the plan followed because an earlier call returned them.
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
    """Return the records that no repair in force drops or replaces yet: dropped ones, and replaced with checksums.

    `are_same` tells if a repair concerns the requested readings of a record. Raises `Refused` if a repair in force does
    something else with one of the records.
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
    """Return what repairs put in the place of records. `values` has the values of replaced records.

    Raises `Refused` if the value of a replaced record is not among `values`.
    """
    result: dict[RecordLocation, Substitute] = {}
    for repair in repairs:
        for name in repair.dropped:
            result[RecordLocation.parse(name)] = Substitute(None, repair.since)
        for name, checksum in repair.replaced.items():
            value = values.get(record := RecordLocation.parse(name))
            if value is None or xxh3_128_hexdigest(value) != checksum:
                raise Refused(
                    f"repair {repair.id} put another record in the place of {name}, whose value is not kept",
                    hint=f"give it again, from the same file: --replace '{name}=FILE'",
                )
            result[record] = Substitute(value, repair.since)
    return result


def repair_to_undo(app: str, repairs: Sequence[Repair]) -> Repair:
    """Return the repair that is under way or was interrupted, or else the newest one. Raises `NotFound` without any."""
    if not repairs:
        raise NotFound(f"repair of {app}", "to undo", hint=f"`slackwater log {app} --operations` lists what was done")
    return ([repair for repair in repairs if repair.state != "done"] or [*repairs])[-1]
