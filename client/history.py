"""What an app has been: its moments, and what changed from one to the next."""

from collections.abc import Callable
from datetime import datetime

from .. import instants
from ..errors import Refused, Unavailable, Usage
from ..keep.rejected import retries
from ..keep.rejected.listing import RejectedRecords, rejected
from ..keep.verify.verify import Report, verify
from ..moments.cut.in_flight import in_flight
from ..moments.cut.resolve import resolve
from ..moments.cut.stored import Snapshot, list_snapshots, of_snapshot, open_requests, read_snapshot
from ..moments.diff.key_history import key_history
from ..moments.query.log import entries
from ..moments.status import lag
from ..moments.take.audit_log import list_operations
from ..results import history, rows, snapshots
from ..results.document import Block, Title
from ..results.shown import Result, Shown
from ..store.versions.apps import read_app
from .connection import Connection
from .moment import Moment
from .results import Difference, KeyHistory, Log
from .status import waiting_for


class AppHistory(Shown):
    """The history of an app, which is only read here: `StoredApp` has what changes an app.

    Whatever reads it raises `Corruption` when an object is not what a manifest promises, and `Unavailable` when the
    store or Kafka does not answer.
    """

    def __init__(self, client: Connection, name: str) -> None:
        self.name = name
        self._client = client

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first. One listing, and one read for each."""
        return list_snapshots(self._client.store, self.name)

    def all_snapshots(self) -> Result:
        """Its snapshots, and those that it was asked for."""
        taken, asked = self.snapshots, open_requests(self._client.store, self.name)
        return snapshots.snapshots(self.name, taken, asked, waiting_for(self._client, self.name, asked))

    def describe(self, name: str) -> Result:
        """A snapshot: its versions, where its inputs stood, and what was on the way. Raises `NotFound`."""
        store = self._client.store
        found = read_snapshot(store, self.name, name)
        cut = of_snapshot(store, found)
        return snapshots.snapshot(found, cut, in_flight(store, cut))

    def at(self, moment: str | datetime = "now", *, stage: str = "") -> Moment:
        """A moment of the app: consistent over all its stages, and always the same once it is here.

        Args:
            moment: what stands behind the `@` of a ref: a snapshot's name, a span back (`-5m`; s, m, h, d), a time in
                ISO form (local, unless it says otherwise) or a datetime, `~3` for commits of data back, `now`. A whole
                ref, as `log` and `bisect` show it, will do.
            stage: a moment of this stage: then also one of its versions, `v42`.

        Raises:
            Usage: that is no moment, or one of another app, or the client is closed.
            NotFound: there is no such snapshot, stage or version, or the history begins later.
        """
        now_ms = instants.now_ms()
        ref = self._ref(moment, stage)
        return Moment(self._client, ref, resolve(self._client.store, ref, now_ms=now_ms))

    def log(self, limit: int = 20, *, stage: str = "", replayable: bool = False) -> Log:
        """The newest `limit` commits (0 for all), newest first: of the app, or of one stage.

        With `replayable`, Kafka is asked whether it still holds what each version read, where it is known. Raises
        `NotFound` for the stage.
        """
        client = self._client
        topics = client.channels() if replayable else None
        if topics is not None:
            try:
                return Log(entries(client.store, self.name, limit, stage=stage, starts=topics.starts))
            except (Unavailable, Refused) as error:
                client.note(f"note: nobody knows what can be replayed: {error.message}")
        return Log(entries(client.store, self.name, limit, stage=stage))

    def operations(self, limit: int = 20) -> Result:
        """The newest `limit` things that were done to the app, by whom; 0 for all."""
        read_app(self._client.store, self.name)
        return history.operations(list_operations(self._client.store, self.name, limit), self.name)

    def verify(self, ref: str, *, deep: bool, on_progress: Callable[[str], None]) -> Report:
        """As `Moment.verify`, of a whole ref, whose manifests may be damaged, too."""
        client, now_ms = self._client, instants.now_ms()
        reader = client.channels() if deep else None
        found = verify(client.store, ref, now_ms=now_ms, deep=deep, reader=reader, on_progress=on_progress)
        client.note_thinned(ref, found.thinned_out)
        return found

    def diff(self, before: str | datetime, after: "str | datetime | Moment" = "now", *, table: str = "") -> Difference:
        """The rows that differ between two moments, as `at` takes them and as `Moment.diff` finds them.

        A moment of another app, such as a clone's, is given as a `Moment`.
        """
        return self.at(before).diff(after if isinstance(after, Moment) else self.at(after), table=table)

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes (0 for all) of the row of one key, newest first, over the versions that are left.

        `key` is as `Moment.get` takes it, which raises likewise.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        now_ms = instants.now_ms()
        found = key_history(client.store, client.cache, self.name, table, values, limit=limit, now_ms=now_ms)
        return KeyHistory(found)

    def rejected(self, *, stage: str = "", limit: int = 50, every: bool = False) -> RejectedRecords:
        """The newest `limit` records (0 for all) that stages, or one, rejected and that wait to be retried.

        With `every`, also those that were retried. Raises `NotFound` for the stage.
        """
        client, cut = self._client, Moment.around(self._client, self.name, "read").cut
        return rejected(client.store, client.cache, cut, stage=stage, limit=limit, every=every)

    def retry(self, stage: str = "", *, dry_run: bool = False) -> Result:
        """Have rejected records that wait put through the current program: those of all stages, or of one."""
        client, now_ms = self._client, instants.now_ms()
        waiting = retries.waiting(client.store, self.name, stage)
        running = {name for beat in lag.beats(client.store, self.name, now_ms) for name in beat.stages}
        for name in () if dry_run else waiting:
            retries.ask(client.store, self.name, name, by=client.by, now_ms=now_ms)
        return rows.retries(self.name, waiting, running, dry_run=dry_run)

    def _ref(self, moment: str | datetime, stage: str = "") -> str:
        text = moment.isoformat() if isinstance(moment, datetime) else moment
        if "@" in text or "/" in text:
            if text.partition("@")[0].partition("/")[0] != self.name:
                raise Usage(f"{text} is a moment of another app; expected one of {self.name!r}")
            if stage:
                raise Usage(f"{text} is a whole ref, and stage {stage!r} beside it says something else; leave one out")
            return text
        return f"{self.name}/{stage}@{text}" if stage else f"{self.name}@{text}"

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} in {self._client.root}"),)
