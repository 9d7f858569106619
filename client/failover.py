"""`AppFailover`: methods of an app that replicate it to other store roots, and recover it from a replica."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Unpack

from ..common.arguments import check_method_arguments
from ..operations.disaster_recovery.drill import drill
from ..operations.disaster_recovery.recover import recover
from ..operations.disaster_recovery.recover_plan import FailoverTerms
from ..operations.disaster_recovery.replicate import Replicator, RoundResult
from ..snapshot.cut.replicas import forget_replica
from ..store.objects.protocol import ObjectStore
from ..store.read.copier import WORKERS
from ..store.versions.apps import read_app
from .clones import remove_topics
from .declared.operations import FailoverOptions
from .releases import AppReleases
from .show import failover as shown
from .show.shown import Result

if TYPE_CHECKING:
    from .searches import Reports

_KAFKA_PURPOSE = "to run the app"
_PRIMARY_TIMEOUT_S = 5.0


@check_method_arguments
class AppFailover(AppReleases):
    """Methods of an app that replicate and recover it."""

    def replicate(
        self,
        to: str,
        *,
        workers: int = WORKERS,
        dry_run: bool = False,
        on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None,
    ) -> Result:
        """Replicate the app to another store root: copy the data that the replica there lacks.

        A client of that root can read the replica like the app. If Kafka is configured, in-flight records are kept
        with the replica. A second call copies what is new; `replicator` runs continuously. `workers` objects are
        copied in parallel; `on_progress` is called with the numbers of objects and bytes copied.

        Raises:
            Usage: the root is the app's own, or malformed.
            Refused: the root has another app of that name; one root lies inside the other; or the replica was
                recovered, was changed by others, or needs versions that garbage collection has deleted.
            Forbidden: this user may not write there.
        """
        read_app(self._client.store, self.name)
        copies = self.replicator(to, workers=workers, on_progress=on_progress)
        if dry_run:
            return shown.replication_plan_result(self.called, copies.target.url, copies.plan())
        if copies.reader is None:
            self._client.note("note: no Kafka configured (--kafka), so in-flight records are not replicated")
        return shown.replication_result(self.called, copies.target.url, copies.run_round())

    def replicator(
        self,
        to: str,
        *,
        workers: int = WORKERS,
        on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None,
    ) -> Replicator:
        """Return a replicator, which copies the app's new data to the store root `to` in repeated rounds."""
        client = self._client
        kafka = client.require_channels(_KAFKA_PURPOSE) if client.settings.brokers else None
        at = client.store.at(to)
        return Replicator(client.store, at, self.name, client.by, kafka, workers, on_progress)

    def end_replica(self, to: str) -> Result:
        """Stop tracking a replica; data that was copied there stays. Costs one request."""
        read_app(self._client.store, self.name)
        root = self._client.store.at(to).url
        return shown.ended_replica_result(
            self.called, root, was_known=forget_replica(self._client.store, self.name, root)
        )

    def recover(
        self,
        *,
        offsets: Mapping[str, int] | None = None,
        as_it_is: bool = False,
        dry_run: bool = False,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[FailoverOptions],
    ) -> Result:
        """Make this replica, opened by its root, a runnable app in its own store and Kafka.

        Each stage gets a version under the next epoch, with the state of the replica's cut and its in-flight records.

        Args:
            offsets: next offset by partition, `"TOPIC[0]"`, with the topic names that the app declares. Overrides the
                detected offset.
            as_it_is: copy no newer versions from the original store.
            dry_run: only show what is lost, in seconds and offsets, and where topics continue.
            on_progress: called with a line about the current step.

        Raises:
            Usage: no Kafka is configured.
            NotFound: there is no replica of that name, or a topic does not exist.
            Refused: the replica is incomplete, another recovery is in progress, the offset at which a topic continues
                is unknown, or in-flight records are kept nowhere.
        """
        client, mirror = self._client, options["mirror"]
        kafka = client.require_channels(_KAFKA_PURPOSE)
        done = recover(
            client.store,
            self.name,
            kafka,
            primary=None if options["alone"] else self._open_primary,
            terms=FailoverTerms(options["mirror"], options["topics"] or {}, offsets or {}),
            by=client.by,
            # A mirror lacks the app's repartition topics, and the original cluster cannot be read from here.
            reader=kafka if mirror is None else None,
            as_it_is=as_it_is or mirror is not None,
            dry_run=dry_run,
            on_step=on_progress,
        )
        return shown.recovery_result(done, dry_run=dry_run)

    def drill(
        self,
        *,
        offsets: Mapping[str, int] | None = None,
        keep: bool = False,
        reports: "Reports | None" = None,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[FailoverOptions],
    ) -> Result:
        """Recover this replica into a temporary clone and verify the clone; with `keep`, the clone stays.

        Neither the app nor the replica changes. The result has the cut, its age, the duration of each step, and the
        verification: checksums are compared, and every byte is read again. `failed` is True if anything differs.
        `offsets` has the form that `recover` takes; `reports` are files for the report. Raises the errors of
        `recover`.
        """
        client = self._client
        kafka = client.require_channels(_KAFKA_PURPOSE)
        result = drill(
            client.store,
            self.name,
            kafka,
            primary=None if options["alone"] else self._open_primary,
            terms=FailoverTerms(options["mirror"], options["topics"] or {}, offsets or {}),
            by=client.by,
            keep=keep,
            remove_topics=lambda removal: remove_topics(kafka, removal),
            on_step=on_progress,
        )
        if reports is not None:
            reports.write_page(client, shown.drill_page(result))
        return shown.drill_result(result)

    def _open_primary(self, root: str) -> ObjectStore:
        from ..store.hot.hot_store import open_store

        return open_store(root, patience_s=_PRIMARY_TIMEOUT_S, settings=self._client.settings.s3)


__all__ = ["AppFailover", "RoundResult"]
