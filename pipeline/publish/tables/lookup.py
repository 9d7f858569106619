"""Look-ups in a table's history: versions that belong to a stage's history, and the snapshot with a version's rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

from ....errors import Refused
from ....store.objects.protocol import ObjectStore
from ....store.versions import apps, history
from ....store.versions.manifest import Manifest
from ...api.table_sink import TableFormat, TableSink
from ...kafka.protocol import TransactionFailed
from .open import open_table
from .protocol import Mark
from .rollback import snapshot_of


def sink_id(app: str, app_id: int, stage: str, sink: str) -> str:
    """Return the name of a sink in tables. An app that is removed and created again gets other names."""
    return f"{app}@{app_id}/{stage}/{sink}"


def is_version_of(store: ObjectStore, head: Manifest, name: str, mark: Mark, kept_rows: int | None = None) -> bool:
    """Return True if a table's version is part of the history of `head`, and has at most `kept_rows` rows up to it.

    After a rewind or a recovery, other versions may have its number.
    """
    if not any(mark.version in versions for versions in head.base_versions()):
        return False
    manifest = history.find(store, head.app, head.stage, mark.version)
    if manifest is None:  # collected: rewinds return only to newer versions
        return True
    sink = manifest.sinks.get(name)
    return sink is not None and sink.id == mark.period and (kept_rows is None or sink.sent <= kept_rows)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Snapshot of a table with the rows of a stage's version, and of no later version."""

    sink: str
    table: str
    """Format and address of the table, such as `delta:s3://lake/alerts`."""
    version: int
    snapshot: str
    """Version of a Delta table, or id of an Iceberg snapshot; empty if there is none or the table is unreadable."""


def table_snapshots(store: ObjectStore, manifest: Manifest) -> Iterator[TableSnapshot]:
    """Yield the snapshot of each table to which a version of a stage was published.

    Reads the tables' histories with the credentials of the environment.
    """
    info = apps.find_app(store, manifest.app)
    for name, sink in manifest.sinks.items():
        if sink.table:
            kind, _, address = sink.table.partition(":")
            owner = sink_id(manifest.app, info.created_ms if info is not None else 0, manifest.stage, name)
            is_current = partial(is_version_of, store, manifest, name)
            try:
                table = open_table(TableSink(name, cast(TableFormat, kind), address), address)
                log = table.log() if table.load(owner, sink.id).has_commits else ()
                snapshot = snapshot_of(log, owner, manifest.version, is_current)
            except (TransactionFailed, Refused):
                snapshot = ""
            yield TableSnapshot(name, sink.table, manifest.version, snapshot)
