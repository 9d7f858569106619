"""State as Iceberg tables: a moment written as such, once or each time that it is another one."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..common import instants
from ..common.durations import HOUR_MS
from ..common.validation import installing
from ..errors import Refused, Usage
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.refs import parse
from ..snapshot.take.audit_log import record
from ..store.versions.apps import in_folder
from .backends import Backends

if TYPE_CHECKING:
    from ..operations.exchange.iceberg.export import WrittenTable

KEEP_MS = HOUR_MS
"""How long an Iceberg snapshot stays that another has replaced, where nobody says."""


class IcebergTables:
    """A ref whose tables are kept as Iceberg tables under a root: `s3://bucket/prefix`, or a folder.

    Args:
        client: the store.
        ref: the moment; one such as `app` is another one each time that it is written.
        root: where the tables' folders are to be; not within an app.
        tables: only these; default all.
        keep_ms: how long a snapshot stays that another has replaced, in milliseconds.

    Raises:
        Usage: the ref or the root is malformed.
        Refused: the package pyiceberg is not installed, or nobody else can read the store.
    """

    def __init__(
        self, client: Backends, ref: str, root: str, *, tables: Collection[str] = (), keep_ms: int = KEEP_MS
    ) -> None:
        if find_spec("pyiceberg") is None:
            raise Refused("Iceberg tables need the package pyiceberg", hint=installing("iceberg"))
        from ..operations.exchange.iceberg.export import IcebergExport

        self.ref = ref
        self._client, self._tables = client, tuple(tables)
        target = client.store.at(root)
        if client.root.startswith("memory:"):
            raise Refused("a store in memory can be read by this process alone: its tables cannot be Iceberg tables")
        self.root = target.url
        self._export = IcebergExport(client.store, client.cache, target, client.by, keep_ms)

    def check_moves(self) -> None:
        """Raise `Usage` for a ref that is the same moment for ever."""
        if not parse(in_folder(self._client.store, self.ref), now_ms=instants.now_ms()).moves:
            raise Usage(
                f"{self.ref!r} is one moment for ever: there is nothing to keep up with",
                hint="leave --every away, or name the app alone",
            )

    def record(self, app: str) -> None:
        """Write into the app's log that its tables are exported."""
        named = f" ({', '.join(self._tables)})" if self._tables else ""
        record(
            self._client.store, app, "export", f"{self.ref}{named} as Iceberg tables in {self.root}", self._client.by
        )

    def write(self, cut: Cut) -> "tuple[WrittenTable, ...]":
        """Write the cut that the ref is now; what became of each table.

        Raises `NotFound`, `Refused`, `Corruption` and `Unavailable`; the same call finishes what was begun.
        """
        return self._export.write(cut, instants.now_ms(), only=self._tables)
