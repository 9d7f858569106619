"""`Server` and `ServedApp`: apps that a server reads, with the methods of `AppHistory` that the server offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, Unpack

import msgspec

from ...common.arguments import check_method_arguments
from ...operations.repair.rejected_listing import RejectedRecords
from ...snapshot.cut.lineage import Lineage, Window
from ...snapshot.cut.stored import Snapshot
from ...snapshot.diff.key_history import RowChange, RowHistory
from ...snapshot.query.log import LogEntry
from ...snapshot.query.timeline import Annotation, CommitPoint, ThinnedLine
from ...snapshot.take.audit_log import Operation
from ...snapshot.verify.verify import Report
from ...store.objects.counting import ReadCounters
from ...store.sst.arrow_types import to_arrow
from ...store.versions.codec import register_type
from ..declared.questions import (
    ImpactOptions,
    MomentOptions,
    OperationsOptions,
    ReconcileOptions,
    RejectedOptions,
    SearchOptions,
    VerifyOptions,
    When,
    WhyNotOptions,
    WhyOptions,
)
from ..results import KeyHistory, Log
from ..show import history
from ..show.document import Block, Title
from ..show.shown import Result
from ..when import NewestMomentMethods, moment_text
from .http import Http
from .moment import MAX_ROWS, ServedMoment, ServedObject
from .values import key_to_text, row_from_json, rows_to_arrow


@check_method_arguments
class Server(ServedObject):
    """A server of a store and its apps; thread-safe. Close it, or use it in a `with`.

    Methods raise `Unavailable` if the server does not answer, and `Forbidden` for requests that the token does not
    allow.
    """

    unavailable_methods = frozenset((
        *("adopt", "attach", "init", "clones", "remove_expired"),
        *("add_token", "digest_of", "remove_token", "tokens"),
        # Internal methods.
        *("at_root", "by", "cache", "channels_for_clone", "channels_of", "channels_or_stub", "moment_of_table"),
        *("note_thinned", "on_behalf_of", "program_path", "require_channels", "store", "unchecked_app"),
    ))  # fmt: skip

    def __init__(self, url: str, token: str = "", timeout_s: float = 60) -> None:
        self.http = Http(url, token, timeout_s)

    @property
    def root(self) -> str:
        """Address of the server."""
        return self.http.url

    @property
    def me(self) -> dict[str, Any]:
        """Rights of the token: its `name`, `verbs`, `apps` and `tables`."""
        rights: dict[str, Any] = self.http.json(("me",))
        return rights

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps that may be read, sorted."""
        return tuple(self.http.json(("apps",))["apps"])

    def app(self, name: str) -> ServedApp:
        """Return an app. Raises `NotFound` for an unknown name."""
        self.http.json(("apps", name))
        return ServedApp(self, name)

    def moment(self, ref: str, participle: str = "") -> ServedMoment:
        """Return the moment of a ref that includes the app: `app`, `app@-5m`, `app/stage@v42`."""
        where, _, when = ref.partition("@")
        app, _, stage = where.partition("/")
        return ServedApp(self, app).at(when or "now", stage=stage)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"slackwater server {self.root}"),)


@check_method_arguments
class ServedApp(ServedObject, NewestMomentMethods):
    """An app on a server, with the methods of `AppHistory` that the server offers."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = self.called = name
        self._server, self._http = server, server.http

    def _local_class(self) -> type:
        from ..app import StoredApp  # a heavy import

        return StoredApp

    def _get(self, *path: str, kind: Any = Any, **params: Any) -> Any:
        return self._http.json(("apps", self.name, *path), kind, **params)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Snapshots of the app, oldest first."""
        snapshots: tuple[Snapshot, ...] = msgspec.convert(
            self._get("snapshots")["snapshots"], register_type(tuple[Snapshot, ...])
        )
        return snapshots

    def at(self, moment: When = "now", **options: Unpack[MomentOptions]) -> ServedMoment:
        """Return a moment of the app; with `min_offsets`, wait until the app has read up to these offsets.

        `moment` has the forms that `AppHistory.at` takes. Raises `Refused` if the app has not read up to these offsets
        within `wait_ms`; the error's `offsets` has the offsets that it has read.
        """
        when = moment_text(moment)
        document = self._get("at", when, **options)
        return ServedMoment(self._http, self.name, when, options["stage"], document)

    def log(self, limit: int = 20, *, stage: str = "") -> Log:
        """Return the newest `limit` commits of the app or of one stage, 10,000 at most. See `AppHistory.log`."""
        params = {"limit": limit or MAX_ROWS, "stage": stage}
        return Log(self._get("log", kind=tuple[LogEntry, ...], **params))

    def timeline(self, points: int = 300, *, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
        """Return the commits between two times, without their programs, thinned out to about `points`.

        See `AppHistory.timeline`.
        """
        document = self._get("timeline", points=points, from_ms=from_ms, to_ms=to_ms)
        commits = tuple(CommitPoint(**point, program="", migration=0) for point in document["points"])
        return ThinnedLine(
            self.name,
            document["commits"],
            commits,
            msgspec.convert(document["marks"], register_type(tuple[Annotation, ...])),
        )

    def stages(self, moment: ServedMoment | None = None) -> dict[str, Any]:
        """Return the status of the stages now or at a moment. See `AppHistory.stages`."""
        at_moment = moment or self.at()
        document: dict[str, Any] = self._get("at", at_moment.when, "stages", stage=at_moment.stage)
        return document

    def operations(self, limit: int = 20, **options: Unpack[OperationsOptions]) -> Result:
        """Return the newest `limit` operations on the app, with user and reason. See `AppHistory.operations`."""
        matches = self._get("operations", kind=tuple[Operation, ...], limit=limit or MAX_ROWS, **options)
        return history.operations_result(matches, self.name, is_filtered=any(options.values()))

    def rejected(self, *, limit: int = 50, **options: Unpack[RejectedOptions]) -> RejectedRecords:
        """Return the newest `limit` rejected records. See `AppHistory.rejected`."""
        document = self._get("rejected", limit=limit or MAX_ROWS, **options)
        for record in document["records"]:
            record.update({name: bytes.fromhex(record[name]) for name in ("key", "value") if record[name] is not None})
        records: RejectedRecords = msgspec.convert(document, register_type(RejectedRecords))
        return records

    def verify(
        self, ref: str, *, on_progress: Callable[[str], None] = lambda _line: None, **options: Unpack[VerifyOptions]
    ) -> Report:
        """Verify the moment of a ref, which must include the app's name. Works even if manifests are damaged."""
        where, _, when = ref.partition("@")
        stage = where.partition("/")[2]
        report: Report = self._get("at", when or "now", "verify", kind=Report, stage=stage, **options)
        return report

    def replay(self, stage: str, version: int, *, key: object = "", limit: int = 1_000) -> dict[str, Any]:
        """Replay a batch on the server; return the document of `slackwater replay --json` with the field `same`.

        `same` is True if the replay's rows equal the committed rows. `key` restricts the replay to one key. `limit` is
        the maximum number of differing keys and rows in the result. Raises `Refused` if the server was started without
        the program, `NotFound` for an unknown version, and `Forbidden` if the token lacks the verb `bisect`.
        """
        params = {"stage": stage, "version": version, "key": key_to_text(key), "limit": limit}
        document: dict[str, Any] = self._http.post(("apps", self.name, "replay"), **params)
        return document

    def why(self, table: str, key: object, at: When = "now", **options: Unpack[WhyOptions]) -> dict[str, Any]:
        """Replay batches on the server, and return the document of `slackwater why --json`. See `AppHistory.why`.

        Raises the errors of `replay`.
        """
        path = ("apps", self.name, "at", moment_text(at), "tables", table, "why")
        document: dict[str, Any] = self._http.post(path, key=key_to_text(key), **options)
        return document

    def impact(self, record: str, **options: Unpack[ImpactOptions]) -> dict[str, Any]:
        """Replay batches on the server, and return the document of `slackwater impact --json`. See `AppHistory.impact`.

        Raises the errors of `replay`.
        """
        document: dict[str, Any] = self._http.post(("apps", self.name, "impact"), record=record, **options)
        return document

    def reconcile(
        self, table: str, theirs: str, *, at: When = "now", limit: int = 50, **options: Unpack[ReconcileOptions]
    ) -> dict[str, Any]:
        """Compare a table with another table, `app/table@moment`.

        Returns the document of `slackwater reconcile --json`.

        See `AppHistory.reconcile`. Batches are replayed if the server has the program. Raises the errors of `diff`.
        """
        path = ("apps", self.name, "at", moment_text(at), "tables", table, "reconcile")
        document: dict[str, Any] = self._http.post(path, theirs=theirs, limit=limit, **options)
        return document

    def why_not(self, table: str, key: object, *, at: When = "now", **options: Unpack[WhyNotOptions]) -> dict[str, Any]:
        """Return the document of `slackwater why-not --json`. See `AppHistory.why_not`. Raises the errors of `diff`."""
        path = ("apps", self.name, "at", moment_text(at), "tables", table, "why-not")
        document: dict[str, Any] = self._http.post(path, key=key_to_text(key), **options)
        return document

    def bisect(
        self, *, on_step: Callable[[dict[str, Any]], None] = lambda _probe: None, **options: Unpack[SearchOptions]
    ) -> dict[str, Any]:
        """Search for the first bad commit on the server; return the document of `slackwater bisect --json`.

        `on_step` is called with each evaluation. Raises the errors of `AppHistory.bisect`.
        """
        verdict: dict[str, Any] = {}
        for name, data in self._http.events(("apps", self.name, "bisect"), **options):
            if name == "probe":
                on_step(data)
            else:
                verdict = data
        return verdict

    def ask_snapshot(self, name: str = "", message: str = "") -> dict[str, Any]:
        """Request a snapshot. Once complete, `snapshots` lists it.

        Without `name`, the snapshot is named after the current time.
        """
        request: dict[str, Any] = self._http.post(("apps", self.name, "snapshots"), name=name, message=message)
        return request

    def lineage(self, stage: str, version: int = 0, *, after: int = 0) -> Lineage:
        """Return the offsets that versions of a stage read. See `AppHistory.lineage`."""
        params = {"stage": stage, "version": version, "after": after}
        lineage: Lineage = self._get("lineage", kind=Lineage, **params)
        return lineage

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """Return the newest `limit` changes of one key's row, 10,000 at most. See `AppHistory.history`."""
        params = {"key": key_to_text(key), "limit": limit or MAX_ROWS}
        document = self._get("tables", table, "history", **params)
        columns = self.at().tables.get(table) or ()
        kinds = {column.name: to_arrow(column.type) for column in columns}
        changes = tuple(
            RowChange(
                **{name: change[name] for name in ("stage", "version", "after_version", "time_ms", "expired")},
                kind=change["change"],
                inherited=change["inherited"] or "",
                formerly=change["formerly"] or "",
                record=change["record"] or "",
                windows=msgspec.convert(change["windows"], register_type(tuple[Window, ...])),
                before=row_from_json(change["before"], kinds),
                after=row_from_json(change["after"], kinds),
            )
            for change in document["changes"]
        )
        keys = rows_to_arrow([document["key"]], {column.name: kinds[column.name] for column in columns if column.key})
        whole_from, read = document["whole_from"] or 0, ReadCounters(**document["read"])
        return KeyHistory(RowHistory(document["app"], table, keys, changes, whole_from, read))

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} of {self._server.root}"),)
