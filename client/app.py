"""An app as it is stored: its history, and what can be done to it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..keep.clone.clone import clone as make_clone
from ..keep.migrate.migrate import Migrated
from ..moments.take.waiting import take
from .history import AppHistory
from .moment import Moment
from .programs import run_options

if TYPE_CHECKING:
    from ..pipeline.migrate.backfilled import Backfilled


class StoredApp(AppHistory):
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
            Unavailable: a stage did not answer in time and is named; or the store, or Kafka, did not.
        """
        store, reader = self._client.store, self._client.channels()
        taken = take(store, self._name, name, by=self._client.by, reader=reader, instant=instant, timeout_s=timeout_s)
        return self.at(taken.snapshot.name)

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
    ) -> Migrated:
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
            Unavailable: the store or Kafka did not answer; the same call again finishes what was begun.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.program import migrate_file

        return migrate_file(
            str(code),
            app=self._name,
            options=run_options(self._client, master, spark_conf, py_files),
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
            Unavailable: the store or Kafka did not answer; the same call goes on.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.backfill import backfill_file
        from ..pipeline.run.news import Told

        self._client.known_channels("from which the past is read")
        return backfill_file(
            str(code),
            app=self._name,
            options=run_options(self._client, master or "local[*]", spark_conf, py_files),
            renames=rename or {},
            stages=rename_stage or {},
            since=self._ref(since) if since else "",
            dry_run=dry_run,
            news=Told(on_progress),
        )

    def clone(
        self,
        to: str,
        *,
        at: str | datetime = "now",
        topics: Mapping[str, str] | None = None,
        sinks: Mapping[str, str] | None = None,
        store: str | None = None,
    ) -> "StoredApp":
        """Make a new app from a moment of this one: same state, same offsets, topics between stages of its own.

        No state is copied. A call that was interrupted is finished by the same call.

        Args:
            to: the new app's name.
            at: the moment, as `at` takes it.
            topics: topics that it reads instead, by the names that the app declares.
            sinks: what it publishes: a topic of its own for each sink, by the name that the app declares; default
                nothing.
            store: the store root of the new app; default the same.

        Returns:
            The new app, which has not begun to run.

        Raises:
            Usage: the name or the moment is malformed, or nothing says where Kafka is.
            NotFound: there is no such moment, topic or sink.
            Refused: the name is taken, a topic does not hold the offsets, or records in flight are gone.
            Unavailable: the store or Kafka did not answer.
        """
        client, source = self._client, self._ref(at)
        channels = client.known_channels("in which a clone has topics of its own")
        target = client.beside(client.store.at(store)) if store else client
        make_clone(
            client.store,
            source,
            to,
            topics=topics or {},
            sinks=sinks,
            channels=channels,
            target_store=target.store,
            by=self._client.by,
        )
        return StoredApp(target, to)
