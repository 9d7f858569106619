"""An app as it is stored: its history, and what can be done to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import instants
from ..moments.cut.stored import own_request
from ..moments.status import lag
from ..moments.take import taking
from ..moments.take.remove import remove_or_withdraw
from ..moments.take.waiting import SnapshotProgress, take
from ..results import snapshots
from ..results.shown import Result
from .kept import KeptApp
from .moment import Moment

if TYPE_CHECKING:
    from ..keep.migrate.migrate import Migrated
    from ..pipeline.migrate.backfill import Backfilled
    from ..pipeline.run.options import Options


class StoredApp(KeptApp):
    """An app of a store, whether it runs or not."""

    def snapshot(self, name: str, *, instant: bool = False, timeout_s: float = 60) -> Moment:
        """Take a snapshot of the app while it runs, and give its moment. Records in flight are kept with it.

        Args:
            name: what to call it.
            instant: pin the newest consistent moment instead, which asks no stage: for an app that does not run.
                Records in flight are kept then if it is known where Kafka is.
            timeout_s: how long to wait for the stages; after that the request is withdrawn.

        Raises:
            Usage: no snapshot can have this name.
            Refused: the name is taken, or records in flight are gone, or no stage of the app is left.
            Unavailable: a stage did not answer in time and is named.
        """
        store, reader = self._client.store, self._client.channels()
        taken, _ = take(store, self.name, name, by=self._client.by, reader=reader, instant=instant, timeout_s=timeout_s)
        return self.at(taken.name)

    def take(
        self, name: str, *, instant: bool, timeout_s: float, wait: bool, on_look: Callable[[SnapshotProgress], None]
    ) -> Result:
        """As `snapshot`, but tells how far it is; without `wait`, it is only asked for."""
        client, store, app, now_ms = self._client, self._client.store, self.name, instants.now_ms()

        def is_new() -> bool:
            # A call that was interrupted is typed again: it finds what that one took, or its request.
            return taking.taken_already(store, app, name, "markers", by=client.by, now_ms=now_ms) is None

        if not wait and not instant and is_new():
            own = own_request(store, app, name, client.by)
            return snapshots.asked(app, own or taking.request(store, app, name, client.by), already=own is not None)
        if not instant and not lag.beats(store, app, now_ms) and is_new():
            client.note(f"nobody runs {app} now: its next runner takes the snapshot; --instant needs none")
        reader = client.channels()
        by = client.by
        taken, already = take(
            store, app, name, by=by, reader=reader, instant=instant, timeout_s=timeout_s, on_look=on_look
        )
        if instant and reader is None and not already:
            client.note("records on the way between stages are not kept with it: nothing says where Kafka is (--kafka)")
        return snapshots.taken(taken, client.flags, already=already)

    def forget(self, name: str, *, force: bool = False, dry_run: bool = False) -> Result:
        """Remove a snapshot, or withdraw the request for one; with `force` also one that a clone lives from.

        Raises `NotFound` where there is none, and `Refused` where a clone lives from it.
        """
        client = self._client
        gone = remove_or_withdraw(client.store, self.name, name, by=client.by, force=force, dry_run=dry_run)
        return snapshots.unpinned(f"{self.name}@{name}", gone, dry_run=dry_run)

    def migrate(
        self,
        code: str | Path,
        *,
        rename: Mapping[str, str] | None = None,
        rename_stage: Mapping[str, str] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
    ) -> "Migrated":
        """Have the app go on with a changed program: all of its stages, or none. No data is rewritten.

        Starts Spark, unless a session runs here already, to see which columns the program declares.

        Args:
            code: the file of the changed program.
            rename: stored columns that have another name in it, old to new; `table.old` for one table.
            rename_stage: stored stages that do.
            dry_run: only look: `plan` says what would change.
            master: Spark's master URL; default one thread of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.

        Returns:
            What was changed (`plan.changes`), by which versions, and the snapshot of the moment before.

        Raises:
            Usage: an argument is not one that could work, or the program declares something that cannot be.
            NotFound: a rename names a column or stage that is not there, or a new input needs Kafka and nothing says
                where that is.
            Refused: what is stored cannot be kept under the program, or somebody else migrates the app. Nothing was
                changed.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.program import migrate_file

        return migrate_file(
            str(code),
            app=self.name,
            options=self._run_options(master, spark_conf, py_files),
            renames=rename or {},
            stages=rename_stage or {},
            dry_run=dry_run,
        )

    def backfill(
        self,
        code: str | Path,
        *,
        since: str | datetime = "",
        rename: Mapping[str, str] | None = None,
        rename_stage: Mapping[str, str] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        on_progress: Callable[[str], None] = lambda _doing: None,
    ) -> "Backfilled":
        """Compute columns that a migration added over the past too, from Kafka, beside the app, which may run.

        Migrates the app first, if it is not. A call that was broken off is finished by the same call. Starts Spark,
        unless a session runs here already.

        Args:
            code: the file of the changed program.
            since: a moment of the app, as `at` takes it: from there on; empty for all that its stages read and Kafka
                has.
            rename: as of `migrate`.
            rename_stage: likewise.
            dry_run: only look: what would be read, and what cannot be computed.
            master: Spark's master URL; default all cores of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.
            on_progress: told in words what goes on.

        Returns:
            The columns that got their past, with the offsets from which on they are complete (`filled`), those that
            stay as they are and why (`left`), and what the program changed before (`migrated`).

        Raises:
            Usage: an argument is not one that could work, or nothing says where Kafka is.
            NotFound: there is no such moment, or a rename names what is not there.
            Refused: nothing that was added can be computed, or the app cannot be migrated.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.backfill import backfill_file
        from ..pipeline.run.news import News

        self._client.known_channels("from which the past is read")
        return backfill_file(
            str(code),
            app=self.name,
            options=self._run_options(master or "local[*]", spark_conf, py_files),
            renames=rename or {},
            stages=rename_stage or {},
            since=self._ref(since) if since else "",
            dry_run=dry_run,
            news=News(on_progress),
        )

    def _run_options(
        self, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
    ) -> "Options":
        """How Spark is started; with Kafka where the client knows it. Raises `Usage`."""
        # Spark's Python side takes a second or two.
        from ..pipeline.spark.conf import check_py_files, check_settings

        channels = self._client.channels()
        return replace(
            self._client.settings.run_options(channels.kafka.properties if channels is not None else {}),
            store=self._client.root,
            master=master,
            spark_conf=check_settings(spark_conf or {}, "spark_conf"),
            py_files=check_py_files(py_files, "py_files"),
        )
