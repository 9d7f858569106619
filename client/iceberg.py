"""Export of a moment's tables as Iceberg tables, which later exports bring up to date."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..common import instants
from ..common.durations import HOUR_MS
from ..common.validation import install_hint
from ..errors import Refused, Usage
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.refs import parse_ref
from ..snapshot.take.audit_log import record_operation
from ..store.versions.apps import replace_name_by_folder
from .backends import Backends

if TYPE_CHECKING:
    from ..operations.exchange.iceberg.export import WrittenTable

KEEP_MS = HOUR_MS


class IcebergTables:
    """Export of a ref's tables as Iceberg tables under a root, `s3://bucket/prefix` or a folder.

    Args:
        client: the store.
        ref: the moment; a ref such as `app` names a newer moment at each write.
        root: the root of the tables' folders; not within an app.
        tables: only these; default all.
        keep_ms: how long a replaced Iceberg snapshot stays readable.

    Raises:
        Usage: the ref or the root is malformed.
        Refused: the package pyiceberg is not installed, or the store is in memory.
    """

    def __init__(
        self, client: Backends, ref: str, root: str, *, tables: Collection[str] = (), keep_ms: int = KEEP_MS
    ) -> None:
        if find_spec("pyiceberg") is None:
            raise Refused("Iceberg tables need the package pyiceberg", hint=install_hint("iceberg"))
        from ..operations.exchange.iceberg.export import IcebergExport

        self.ref = ref
        self._client, self._tables = client, tuple(tables)
        target = client.store.at(root)
        if client.root.startswith("memory:"):
            raise Refused("an in-memory store cannot be exported to Iceberg: no other process can read it")
        self.root = target.url
        self._export = IcebergExport(client.store, client.cache, target, client.by, keep_ms)

    def check_ref_is_relative(self) -> None:
        """Raise `Usage` for a ref that always names one moment, such as a snapshot or a version."""
        if not parse_ref(replace_name_by_folder(self._client.store, self.ref), now_ms=instants.now_ms()).is_relative:
            raise Usage(
                f"{self.ref!r} always names the same moment, so there is nothing to keep up to date",
                hint="omit --every, or name only the app",
            )

    def record(self, app: str) -> None:
        """Record the export in the app's log of operations."""
        named = f" ({', '.join(self._tables)})" if self._tables else ""
        record_operation(
            self._client.store, app, "export", f"{self.ref}{named} as Iceberg tables in {self.root}", self._client.by
        )

    def write(self, cut: Cut) -> "tuple[WrittenTable, ...]":
        """Write the tables of a cut and return the outcome for each.

        Raises `NotFound`, `Refused`, `Corruption` and `Unavailable`; the same call again finishes the write.
        """
        return self._export.write(cut, instants.now_ms(), only=self._tables)
