"""Kinds of objects in an app's folder: their keys, the objects that name them, and how each command treats them.

Commands follow the rows of this table. To add a kind of object, add a row. `tests/snapshot/gc/test_census.py` checks
every command against the rows.
"""

import re
from dataclasses import dataclass
from typing import Literal

from ...store.versions import keys


@dataclass(frozen=True, slots=True, eq=False)
class ObjectKind:
    """Kind of object, with one field for each command. An empty field means that the command ignores the objects."""

    key_pattern: str
    """Pattern of the key, in which `<word>` stands for one part of a name."""
    description: str
    """Description of the object; if `gc` is empty, also how long the object is kept."""
    named_by: str = ""
    """Kind of the object that refers to objects of this kind; empty if they are found by listing."""
    gc: Literal["", "unreachable", "unnamed", "replaced"] = ""
    """Objects of this kind that garbage collection deletes; empty for none.

    `unreachable`: versions that no rule keeps, and pages without other versions. `unnamed`: objects that no other
    object names. `replaced`: all objects except the object with the highest number.
    """
    forget: Literal["", "rewrites", "masks", "refuses"] = ""
    """Effect of `forget` on the objects: `rewrites` them without the keys, `masks` text in them, or `refuses`.

    `refuses`: `forget` fails while an object of this kind exists.
    """
    replicate: Literal["", "rules", "versions", "along", "snapshots", "identity"] = ""
    """Step of `replicate` that copies the objects. Order: rules, versions, along, snapshots, identity."""
    remove: Literal["then", "first", "last", "note", "stays"] = "then"
    """Step of an app's removal in which the objects are deleted; `note` and `stays` have no step.

    `last` deletes the newest version of each stage, and `then` deletes the older versions. `note` is the removal's
    journal.
    """
    verify: Literal["", "cut", "app", "read"] = ""
    """Objects that `verify` checks: those of the verified cut, or all of the app. `read`: they must be readable."""
    export: Literal["", "document", "rows", "read"] = ""
    """Part of an export with the content of the objects. `read`: the export fails if an object is unreadable."""


_row, _json = ObjectKind, keys.json_object
_A, _S, _N, _U = "<app>", "<stage>", "<number>", "<ulid>"

# Columns: key, description, object that names it; then the words for gc, forget, replicate, remove, verify, export.
MANIFEST = _row(
    _json(keys.manifests(_A, _S), _N), "a version", "", "unreachable", "masks", "versions", "last", "cut", "document"
)
SST = _row(
    keys.sst(_A, _S, _U), "rows of a table", "a version", "unnamed", "rewrites", "versions", "then", "cut", "rows"
)
LEAF = _row(
    keys.leaf(_A, _S, _U), "entries of a table's SSTs", "a version", "unnamed", "", "versions", "then", "cut", "rows"
)
_KEPT, _SENT = "a snapshot: kept until `slackwater snapshot rm` removes it", "records in flight"
HOT_PLACE = _row(
    _json(keys.hot_places(_A), _U), "a second root with SSTs of batches: kept as long as the app", remove="last"
)
PAGE = _row(_json(keys.pages(_A, _S), "<span>"), "times and objects of versions", "", "unreachable")
SNAPSHOT = _row(_json(keys.snapshots(_A), "<name>"), _KEPT, "", "", "", "snapshots", "first", "cut", "read")
_CAPTURED = keys.captured_records(_A, "<name>", _U)
IN_FLIGHT = _row(_CAPTURED, _SENT, "a snapshot", "unnamed", "rewrites", "snapshots", "first", "cut", "rows")
_READ, _INDEX = "records read from a topic, for when Kafka has lost them", "the objects and offsets of an input archive"
ARCHIVED = _row(
    keys.archive_object(_A, "<topic>", _U), _READ, "an index", "unnamed", "rewrites", "along", "then", "app"
)
ARCHIVE_INDEX = _row(
    _json(keys.archive_indexes(keys.archive(_A, "<topic>")), _N), _INDEX, "", "replaced", "", "along", "then", "app"
)
OBJECT_KINDS = (
    _row(
        keys.app_info(_A),
        "the app's identity, origin and starting offsets: kept as long as the app",
        replicate="identity",
        remove="first",
        export="document",
    ),
    _row(keys.channels(_A), "the offsets of a clone's copied records: kept as long as the app", replicate="along"),
    MANIFEST,
    SST,
    LEAF,
    PAGE,
    HOT_PLACE,
    _row(_json(keys.published_positions(_A, _S, "<sink>"), _N), "the progress of a sink: the newest is kept"),
    _row(keys.clone_journal(_A), "the journal of an unfinished clone or adoption: kept until it is complete"),
    _row(keys.removal_journal(_A), "the journal of an unfinished removal: kept until the app is gone", remove="note"),
    SNAPSHOT,
    _row(keys.snapshot_pack(_A), "copies of snapshots: kept as long as the app"),
    IN_FLIGHT,
    _row(
        _json(keys.requests(_A), _U),
        "a request for a snapshot: kept until it is complete or withdrawn",
        forget="refuses",
        remove="first",
    ),
    _row(keys.request_signal(_A), "the object that tells runners of new requests: kept as long as the app"),
    ARCHIVED,
    ARCHIVE_INDEX,
    _row(
        _json(keys.runners(_A), _U),
        "a runner's heartbeat, every 15 s: deleted by another runner an hour after the last one",
    ),
    _row(
        _json(keys.boundaries(_A), _N),
        "the versions that may exist after garbage collection",
        gc="replaced",
        verify="read",
    ),
    _row(keys.collection(_A), "the time of the last garbage collection: kept as long as the app"),
    _row(_json(keys.retries(_A), _U), "a request to retry rejected records: kept until it is done"),
    _row(_json(keys.edits(_A), _U), "a request to edit rows: kept until it is done or withdrawn", forget="refuses"),
    _row(keys.edit_rows(_A, _U), "the rows of an edit: kept as long as its request", "a request", forget="refuses"),
    _row(
        _json(keys.repairs(_A), _U),
        "a repair, with the records that it took out: kept as long as the app, also after an undo",
        replicate="along",
    ),
    _row(_json(keys.migrations(_A), _N), "a migration, stage by stage: kept as long as the app", replicate="rules"),
    _row(
        _json(keys.forgotten(_A), _N),
        "the objects that replace those with forgotten keys",
        gc="replaced",
        replicate="rules",
        verify="read",
        export="read",
    ),
    _row(keys.forget_journal(_A), "the journal of an unfinished `slackwater forget`: kept until it is done"),
    _row(keys.hold(_A), "the offsets at which a promotion or a repair holds the app: kept until it is done"),
    _row(
        keys.protected(_A),
        "the protection of the app: kept until `slackwater protect --off`",
        replicate="along",
    ),
    _row(
        _json(keys.replicas(_A), "<id>"),
        "the progress of a replica under another root: kept until `slackwater replicate --end`",
    ),
    _row(keys.replica(_A), "the state of the folder: replica, recovered or abandoned app: kept"),
    _row(_json(keys.replica_cuts(_A), _N), "the cut up to which a replica is complete: the newest is kept"),
    _row(keys.recovery_journal(_A), "the journal of a recovery from this replica: kept"),
    _row(keys.recovered_root(_A), "the root to which the app was recovered: kept"),
    _row(
        keys.refresh_journal(_A),
        "the journal of an unfinished refresh of a clone: kept until it is done",
        remove="stays",
    ),
    _row(keys.removed(_A), "the record of a finished removal: kept", remove="stays"),
    _row(
        _json(keys.operations(_A), _U),
        "an entry of the log of operations: kept as long as the app",
        forget="masks",
        replicate="along",
    ),
)
_PLACES = re.compile(
    "|".join("(" + re.sub("<[a-z]+>", "[^/]+", kind.key_pattern.replace(".", r"\.")) + ")" for kind in OBJECT_KINDS)
)


def object_kind_of(key: str) -> ObjectKind | None:
    match = _PLACES.fullmatch(key)
    return OBJECT_KINDS[match.lastindex - 1] if match is not None and match.lastindex is not None else None


def prefixes_copied_alongside(app: str) -> tuple[str, ...]:
    """Return the keys or key prefixes of all kinds of objects with `replicate="along"`, without duplicates."""
    prefixes = (
        kind.key_pattern.replace(_A, app).partition("<")[0] for kind in OBJECT_KINDS if kind.replicate == "along"
    )
    return tuple(dict.fromkeys(prefixes))
