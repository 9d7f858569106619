"""Apps over HTTP: the methods of `AppHistory` that a server offers, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, Unpack

import msgspec

from ...common.argument_types import checked_methods
from ...common.learned import learned
from ...operations.repair.rejected_listing import RejectedRecords
from ...snapshot.cut.lineage import Lineage, Window
from ...snapshot.cut.stored import Snapshot
from ...snapshot.diff.key_history import RowChange, RowHistory
from ...snapshot.query.log import LogEntry
from ...snapshot.query.timeline import CommitPoint, Mark, ThinnedLine
from ...snapshot.take.audit_log import Operation
from ...snapshot.verify.verify import Report
from ...store.objects.stats import Reads
from ...store.sst.arrow_types import to_arrow
from ..declared.questions import MomentOptions, OperationsOptions, RejectedOptions, SearchOptions, VerifyOptions, When
from ..results import KeyHistory, Log
from ..show import history
from ..show.document import Block, Title
from ..show.shown import Result
from ..when import HasMoments, in_words
from .http import Http
from .moment import MOST, Served, ServedMoment
from .values import rows, text, typed


@checked_methods
class Server(Served):
    """A server of a store, and its apps. Threads may share it. `close` it, or use it in a `with`.

    Whatever asks it raises `Unavailable` when it does not answer, and `Forbidden` for what the token does not allow.
    """

    absent = frozenset((
        *("adopt", "attach", "init", "clones", "remove_expired"),
        *("add_token", "digest_of", "remove_token", "tokens"),
        # Of the library's own.
        *("beside", "by", "cache", "called", "channels_of", "channels_of_clone", "channels_where_needed"),
        *("known_channels", "moment_of_table", "note_thinned", "on_behalf_of", "program_of", "store"),
    ))  # fmt: skip

    def __init__(self, url: str, token: str = "", timeout_s: float = 60) -> None:
        self.http = Http(url, token, timeout_s)

    @property
    def root(self) -> str:
        """Its address."""
        return self.http.url

    @property
    def me(self) -> dict[str, Any]:
        """What the token may: its `name`, `verbs`, `apps` and `tables`."""
        found: dict[str, Any] = self.http.json(("me",))
        return found

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps that may be read, sorted."""
        return tuple(self.http.json(("apps",))["apps"])

    def app(self, name: str) -> ServedApp:
        """An app. Raises `NotFound` for one that is not there."""
        self.http.json(("apps", name))
        return ServedApp(self, name)

    def moment(self, ref: str, done: str = "") -> ServedMoment:
        """The moment of a whole ref: `app`, `app@-5m`, `app/stage@v42`."""
        where, _, when = ref.partition("@")
        app, _, stage = where.partition("/")
        return ServedApp(self, app).at(when or "now", stage=stage)

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"slackwater server {self.root}"),)


@checked_methods
class ServedApp(Served, HasMoments):
    """An app, as `AppHistory`."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = self.called = name
        self._server, self._http = server, server.http

    def _local(self) -> type:
        from ..app import StoredApp  # which loads all that changes an app

        return StoredApp

    def _get(self, *path: str, kind: Any = Any, **asked: Any) -> Any:
        return self._http.json(("apps", self.name, *path), kind, **asked)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first."""
        taken: tuple[Snapshot, ...] = msgspec.convert(
            self._get("snapshots")["snapshots"], learned(tuple[Snapshot, ...])
        )
        return taken

    def at(self, moment: When = "now", **options: Unpack[MomentOptions]) -> ServedMoment:
        """A moment, as `AppHistory.at`; of `now` one that has read some records, `"topic:partition:offset"` each.

        Raises `Refused` where it has not within `wait_ms`; the error's `offsets` says how far it has.
        """
        when = in_words(moment)
        found = self._get("at", when, **options)
        return ServedMoment(self._http, self.name, when, options["stage"], found)

    def log(self, limit: int = 20, *, stage: str = "") -> Log:
        """The newest `limit` commits, as `AppHistory.log`; 10,000 at most."""
        asked = {"limit": limit or MOST, "stage": stage}
        return Log(self._get("log", kind=tuple[LogEntry, ...], **asked))

    def timeline(self, points: int = 300, *, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
        """Commits between two times and what stands out, as `AppHistory.timeline`, without the programs of commits."""
        found = self._get("timeline", points=points, from_ms=from_ms, to_ms=to_ms)
        commits = tuple(CommitPoint(**each, program="", migration=0) for each in found["points"])
        return ThinnedLine(
            self.name, found["commits"], commits, msgspec.convert(found["marks"], learned(tuple[Mark, ...]))
        )

    def stages(self, moment: ServedMoment | None = None) -> dict[str, Any]:
        """The stages now, or as they were at a moment, as `AppHistory.stages`."""
        of = moment or self.at()
        found: dict[str, Any] = self._get("at", of.when, "stages", stage=of.stage)
        return found

    def operations(self, limit: int = 20, **options: Unpack[OperationsOptions]) -> Result:
        """The newest `limit` things done to the app, by whom and why, as `AppHistory.operations`."""
        found = self._get("operations", kind=tuple[Operation, ...], limit=limit or MOST, **options)
        return history.operations(found, self.name, is_filtered=any(options.values()))

    def rejected(self, *, limit: int = 50, **options: Unpack[RejectedOptions]) -> RejectedRecords:
        """Records that stages rejected, newest first, as `AppHistory.rejected`."""
        found = self._get("rejected", limit=limit or MOST, **options)
        for each in found["records"]:
            each.update({name: bytes.fromhex(each[name]) for name in ("key", "value") if each[name] is not None})
        whole: RejectedRecords = msgspec.convert(found, learned(RejectedRecords))
        return whole

    def verify(
        self, ref: str, *, on_progress: Callable[[str], None] = lambda _line: None, **options: Unpack[VerifyOptions]
    ) -> Report:
        """What `ServedMoment.verify` does, for a whole ref, whose manifests may be damaged, too."""
        where, _, when = ref.partition("@")
        stage = where.partition("/")[2]
        found: Report = self._get("at", when or "now", "verify", kind=Report, stage=stage, **options)
        return found

    def replay(self, stage: str, version: int, *, key: object = "", limit: int = 1_000) -> dict[str, Any]:
        """What `slackwater replay --json` gives of a batch that the server runs again, and `same`: whether it agrees.

        With `key` only of that key; `limit` bounds the keys and rows that differ. Raises `Refused` where the server was
        started without the program, `NotFound` for the version, and `Forbidden` without the verb `bisect`.
        """
        asked = {"stage": stage, "version": version, "key": text(key), "limit": limit}
        found: dict[str, Any] = self._http.post(("apps", self.name, "replay"), **asked)
        return found

    def bisect(
        self,
        *,
        on_step: Callable[[dict[str, Any]], None] = lambda _probe: None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """What `slackwater bisect --json` gives, searched by the server; `on_step` is told of each moment looked at.

        Raises as `AppHistory.bisect`.
        """
        found: dict[str, Any] = {}
        for name, data in self._http.events(("apps", self.name, "bisect"), **options):
            if name == "probe":
                on_step(data)
            else:
                found = data
        return found

    def ask_snapshot(self, name: str = "", message: str = "") -> dict[str, Any]:
        """Ask the app for a snapshot, by default called as the time is; `snapshots` shows it when it is complete."""
        asked: dict[str, Any] = self._http.post(("apps", self.name, "snapshots"), name=name, message=message)
        return asked

    def lineage(self, stage: str, version: int = 0, *, after: int = 0) -> Lineage:
        """The input behind versions of a stage, as `AppHistory.lineage`."""
        asked = {"stage": stage, "version": version, "after": after}
        found: Lineage = self._get("lineage", kind=Lineage, **asked)
        return found

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes of the row of one key, as `AppHistory.history`; 10,000 at most."""
        asked = {"key": text(key), "limit": limit or MOST}
        found = self._get("tables", table, "history", **asked)
        columns = self.at().tables.get(table) or ()
        kinds = {each.name: to_arrow(each.type) for each in columns}
        changes = tuple(
            RowChange(
                **{name: each[name] for name in ("stage", "version", "after_version", "time_ms", "expired")},
                kind=each["change"],
                inherited=each["inherited"] or "",
                formerly=each["formerly"] or "",
                windows=msgspec.convert(each["windows"], learned(tuple[Window, ...])),
                before=typed(each["before"], kinds),
                after=typed(each["after"], kinds),
            )
            for each in found["changes"]
        )
        keys = rows([found["key"]], {each.name: kinds[each.name] for each in columns if each.key})
        whole_from, read = found["whole_from"] or 0, Reads(**found["read"])
        return KeyHistory(RowHistory(found["app"], table, keys, changes, whole_from, read))

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} of {self._server.root}"),)
