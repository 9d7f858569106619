"""Manifests for tests: random ones with valid types, and plain ones."""

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Meta, Struct
from msgspec.structs import replace
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import keys
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.column_types import FieldSource, Lineage
from slackwater.store.versions.entries.ssts import Sst, Ssts
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import (
    AppInfo,
    Column,
    FollowedQuery,
    FormerName,
    Input,
    LostRecords,
    Manifest,
    Output,
    Rewind,
    SideTable,
    Table,
)

SMALL_LEAVES = {"_MAX_INLINE_BYTES": 500, "_ENTRIES_PER_RUN": 0, "_SSTS_PER_LEAF": 2, "_TOLERANCE": 1}
"""Limits for `leaves.fold`, with which even tables of a few SSTs have leaves."""


def _lineage(of: str, prefix: str = "") -> Lineage:
    return {name: (FieldSource(of, f"{prefix}{name}"),) for name in ("tail", "carrier", "delay")}


LINEAGE: dict[str, dict[str, Lineage]] = {
    "legs": {"by-aircraft": _lineage("flights", "$.")},
    "aircraft": {"": {"tail": (FieldSource("by-aircraft", "tail"),)}, "by-carrier": _lineage("by-aircraft")},
    "carriers": {"": {"carrier": (FieldSource("by-carrier", "carrier"),)}},
}
"""Source fields of the columns in `histories.FlightsApp`: a flight in its topic is JSON."""


def claim(
    store: ObjectStore,
    app: str,
    stage: str,
    *,
    writer: str,
    by: str,
    now_ms: int,
    kind: VersionKind = "claim",
    build: Callable[[Manifest], Manifest] = lambda draft: draft,
) -> Manifest:
    """Claim a stage: commit a version with the next epoch, and return it."""
    return amend(store, (app, stage), Amendment(kind, build), writer=writer, by=by, now_ms=now_ms).manifest


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a type in the store's structs, within the type's limits."""
    limits = Meta()
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        limits = next((meta for meta in reversed(metas) if isinstance(meta, Meta)), limits)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Ssts:
        return st.lists(any_value(Sst), max_size=3).map(Ssts)
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: any_value(hint) for name, hint in hints.items()})
    if origin is tuple:
        return st.lists(any_value(arguments[0]), min_size=limits.min_length or 0, max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(any_value(arguments[0]), any_value(arguments[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (UnionType, Union):
        return st.one_of(*map(any_value, arguments))
    if kind is str and limits.pattern:
        return st.from_regex(limits.pattern, fullmatch=True)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(limits.ge, limits.le),  # type: ignore[arg-type]
        float: st.floats(limits.ge, limits.le, allow_nan=False, allow_infinity=False),
        str: st.text(min_size=limits.min_length or 0, max_size=8),
        bool: st.booleans(),
        type(None): st.none(),
        Any: st.recursive(st.text(max_size=8) | st.integers(0, 9), st.lists, max_leaves=3),
    }
    return plain[kind]


def _that_can_be(value: Manifest) -> Manifest:
    """Return the manifest, with its fields made consistent with each other."""
    version = value.version
    table = value.table or Table((Column("k", "int64"),), (), 1)
    return replace(
        value,
        seq=min(value.seq, version),
        inputs={name: _input(source, value.stage, version) for name, source in value.inputs.items()},
        stopped={name: _input(source, value.stage, version) for name, source in value.stopped.items()},
        outputs={name: _output(output) for name, output in value.outputs.items()},
        sinks={name: replace(one, since=min(one.since, version), rows=0) for name, one in value.sinks.items()},
        table=_table(table) if value.ssts or value.table else None,
        ssts=tuple(_sst(sst, number, value.stage, version) for number, sst in enumerate(value.ssts)),
        recorded={snapshot: min(at, version) for snapshot, at in value.recorded.items()},
        awaited={snapshot: names for snapshot, names in value.awaited.items() if snapshot in value.recorded},
        captured={},
        lost={name: _lost(lost, value.inputs[name]) for name, lost in value.lost.items() if name in value.inputs},
        side_tables={name: _side_table(each, value.stage, version) for name, each in value.side_tables.items()},
        called=value.called if value.kind == "retire" else "",
        formerly=_formerly(value),
        rewinds=_rewinds(value),
        attached=_attached(value.attached),
        adopted=_attached(value.adopted),
    )


def _attached(value: FollowedQuery | None) -> FollowedQuery | None:
    return replace(value, batches=min(value.batches, value.next_batch)) if value is not None else None


def _side_table(table: SideTable, stage: str, version: int) -> SideTable:
    ssts = tuple(_sst(sst, number, stage, version) for number, sst in enumerate(table.ssts))
    return replace(table, table=_table(table.table), ssts=ssts, total=max(table.rows, table.total, table.waiting))


def _formerly(value: Manifest) -> tuple[FormerName, ...]:
    """Return as many former names as the manifest has, but no more than versions. The last one is from this version."""
    count = min(value.version, len(value.formerly) or int(value.kind == "rename"))
    versions = range(value.version - count + 1, value.version + 1)
    return tuple(FormerName(f"former-{version}", version) for version in versions)


def _rewinds(value: Manifest) -> tuple[Rewind, ...]:
    """Return as many rewinds as there can be by this version. The last of them is in this version."""
    some = value.rewinds[: value.version]
    numbered = enumerate(some, value.version - len(some) + 1)
    return tuple(replace(each, version=at, to=min(each.to, at - 1)) for at, each in numbered)


def _input(source: Input, stage: str, version: int) -> Input:
    if source.upstream in ("", stage):
        source = replace(source, upstream="", version=0)
    resets = tuple(
        replace(each, version=number, starts=source.offsets, ends=source.offsets)
        for number, each in enumerate(source.resets[: 0 if source.upstream else version], 1)
    )
    return replace(source, consumed=source.offsets[:0], lost=source.offsets[:0], resets=resets)


def _lost(lost: LostRecords, source: Input) -> LostRecords:
    after, up_to = sorted((lost.after, lost.up_to))
    return replace(lost, starts=source.offsets, ends=source.offsets, rows=(), after=after, up_to=up_to)


def _output(output: Output) -> Output:
    schema = "`a` bigint, b string" if output.schema else ""
    return replace(
        output, schema=schema, sent=(0,) * len(output.ends), markers=dict.fromkeys(output.markers, output.ends)
    )


def _table(table: Table) -> Table:
    keys_, values = (
        tuple(replace(each, name=f"{letter}{number}{each.name[:5]}", type=kind) for number, each in enumerate(columns))
        for letter, kind, columns in (("k", "int64", table.key), ("v", "list<string>", table.values))
    )
    ids = iter(range(1, 1 + len(keys_) + len(values)))
    keys_, values = (
        tuple(replace(each, id=next(ids) if table.schema else 0) for each in columns) for columns in (keys_, values)
    )
    next_id = 1 + len(keys_) + len(values) if table.schema else 0
    return replace(table, key=keys_, values=values, ttl=None, next_id=next_id)


def _sst(sst: Sst, number: int, stage: str, version: int) -> Sst:
    low, high = sorted((sst.hash_min, sst.hash_max))
    seqs = sorted((min(sst.seq_min, version), min(sst.seq_max, version)))
    expires = sorted((sst.expires_min, sst.expires_max))
    return replace(
        sst,
        object=keys.sst("any-app", stage, f"ulid{number}"),
        rows=min(sst.rows, sst.bytes or 1),
        bytes=sst.bytes or 1,
        checksum="0a" * 16,
        hash_min=low,
        hash_max=high,
        seq_min=seqs[0],
        seq_max=seqs[1],
        tombstones=min(sst.tombstones, sst.rows, sst.bytes),
        root="/srv" if sst.root else "",
        footer_bytes=0,
        footer_checksum="",
        filter_bytes=0,
        expiring=0,
        expires_min=expires[0],
        expires_max=expires[1],
    )


def _app_that_can_be(value: AppInfo) -> AppInfo:
    origin = value.origin
    if origin is None:
        return value
    return replace(value, origin=replace(origin, root="s3://bucket/a/prefix"))


MANIFESTS: st.SearchStrategy[Manifest] = any_value(Manifest).map(_that_can_be)
APPS: st.SearchStrategy[AppInfo] = any_value(AppInfo).map(_app_that_can_be)


def manifest(version: int, *, epoch: int = 1, writer: str = "w", time_ms: int | None = None) -> Manifest:
    """Return a batch of stage `app/stage`. By default, versions are committed 10 milliseconds apart."""
    return Manifest(
        "app",
        "stage",
        version,
        epoch,
        writer,
        10 * version if time_ms is None else time_ms,
        "batch",
        by=f"host:{writer}",
    )
