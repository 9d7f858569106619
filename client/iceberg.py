"""Export of a moment's tables as Iceberg tables, which a later export updates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common import instants
from ..common.extras import require_extras
from ..errors import Refused, Usage
from ..snapshot.cut.refs import parse_ref
from ..snapshot.take.audit_log import record_operation
from ..store.versions.apps import replace_name_by_folder
from .backends import Backends

if TYPE_CHECKING:
    from ..operations.exchange.iceberg.export import IcebergExport


def open_export(client: Backends, root: str, keep_ms: int, catalog: str = "") -> "IcebergExport":
    """Return an exporter to Iceberg tables under a root, `s3://bucket/prefix` or a folder, outside of all apps.

    A replaced Iceberg snapshot stays readable for `keep_ms`. Tables are registered in `catalog`, `CATALOG` or
    `CATALOG.NAMESPACE`, unless it is empty. Raises `Usage` if the root or `catalog` is malformed, and `Refused` if the
    package pyiceberg is not installed, the store is in memory, or the catalog cannot be opened.
    """
    require_extras("iceberg", "an export to Iceberg")
    from ..operations.exchange.iceberg.catalog import CatalogNamespace
    from ..operations.exchange.iceberg.export import IcebergExport

    target = client.store.at(root)
    if client.root.startswith("memory:"):
        raise Refused("an in-memory store cannot be exported to Iceberg: no other process can read it")
    entries = CatalogNamespace.open(catalog) if catalog else None
    return IcebergExport(client.store, client.cache, target, client.by, keep_ms, entries)


def record_export(client: Backends, app: str, ref: str, root: str, tables: Sequence[str]) -> None:
    """Record an export in the app's log of operations."""
    named = f" ({', '.join(tables)})" if tables else ""
    record_operation(client.store, app, "export", f"{ref}{named} as Iceberg tables in {root}", client.by)


def check_ref_is_relative(client: Backends, ref: str) -> None:
    """Raise `Usage` for a ref that always names the same moment, such as a snapshot or a version."""
    if not parse_ref(replace_name_by_folder(client.store, ref), now_ms=instants.now_ms()).is_relative:
        raise Usage(
            f"{ref!r} always names the same moment, so there is nothing to keep up to date",
            hint="omit --every, or name only the app",
        )
