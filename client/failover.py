"""Replicas of an app under other store roots, and the app made of one of them when its own is lost."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Unpack

from ..common.argument_types import checked_methods
from ..operations.disaster_recovery.drill import drill
from ..operations.disaster_recovery.recover import recover
from ..operations.disaster_recovery.recover_plan import FailoverTerms
from ..operations.disaster_recovery.replicate import Replicator, Round
from ..snapshot.cut.replicas import forget
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

_GOES_ON = "in which the app goes on"
_LOOK_S = 5.0
"""How long the root where the app ran is waited for: it is lost, perhaps."""


@checked_methods
class AppFailover(AppReleases):
    """What copies an app elsewhere, and what makes it run there."""

    def replicate(
        self,
        to: str,
        *,
        workers: int = WORKERS,
        dry_run: bool = False,
        on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None,
    ) -> Result:
        """Copy to another store root what its replica there lacks.

        The replica can be read as the app can, by whoever opens that root. What was on the way between stages is kept
        with it, where something says where Kafka is. Called again, it copies what is new; `replicator` goes on by
        itself. `workers` objects are copied at once; `on_progress` is told how many were, and of how many bytes.

        Raises:
            Usage: the root is the app's own, or cannot be understood.
            Refused: the root has something else of that name, or lies inside the app's; the replica was recovered, was
                written to by others, or is older than what garbage collection left.
            Forbidden: this user may not write there.
        """
        read_app(self._client.store, self.name)
        copies = self.replicator(to, workers=workers, on_progress=on_progress)
        if dry_run:
            return shown.to_copy(self.called, copies.target.url, copies.plan())
        if copies.reader is None:
            self._client.note("note: nothing says where Kafka is, so records on the way are not kept (--kafka)")
        return shown.copied(self.called, copies.target.url, copies.round())

    def replicator(
        self,
        to: str,
        *,
        workers: int = WORKERS,
        on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None,
    ) -> Replicator:
        """What copies the app there, a round at a time."""
        client = self._client
        kafka = client.known_channels(_GOES_ON) if client.settings.brokers else None
        at = client.store.at(to)
        return Replicator(client.store, at, self.name, client.by, kafka, workers, on_progress)

    def end_replica(self, to: str) -> Result:
        """Count a replica no more, as it is not kept up to date; what was copied stays. One request."""
        read_app(self._client.store, self.name)
        root = self._client.store.at(to).url
        return shown.ended(self.called, root, was_known=forget(self._client.store, self.name, root))

    def recover(
        self,
        *,
        offsets: Mapping[str, int] | None = None,
        as_it_is: bool = False,
        dry_run: bool = False,
        doing: Callable[[str], None] = lambda _what: None,
        **options: Unpack[FailoverOptions],
    ) -> Result:
        """Make the app of this replica, the root of which was opened: it runs here from then on, in this Kafka.

        Each stage gets a version under the next epoch, with what the replica's cut has, and what was on the way then.

        Args:
            offsets: where partitions are read on, `"TOPIC[0]"` as the app read them: for those who know.
            as_it_is: copy nothing more from where the app ran.
            dry_run: only look: what is lost, in seconds and offsets, and where topics are read on.
            doing: told in words what goes on.

        Raises:
            Usage: nothing says where Kafka is.
            NotFound: there is no replica of that name, or no topic.
            Refused: the replica is not whole; somebody else recovers it; it cannot be told where a topic is read on; or
                what was on the way is kept nowhere.
        """
        client, mirror = self._client, options["mirror"]
        kafka = client.known_channels(_GOES_ON)
        done = recover(
            client.store,
            self.name,
            kafka,
            primary=None if options["alone"] else self._open_primary,
            terms=FailoverTerms(options["mirror"], options["topics"] or {}, offsets or {}),
            by=client.by,
            # A mirror has no repartition topics of the app's, and another cluster cannot be read from here.
            reader=kafka if mirror is None else None,
            as_it_is=as_it_is or mirror is not None,
            dry_run=dry_run,
            doing=doing,
        )
        return shown.recovered(done, dry_run=dry_run)

    def drill(
        self,
        *,
        offsets: Mapping[str, int] | None = None,
        keep: bool = False,
        reports: "Reports | None" = None,
        doing: Callable[[str], None] = lambda _what: None,
        **options: Unpack[FailoverOptions],
    ) -> Result:
        """Try a recovery of this replica, as a clone of it that goes again, unless `keep` says that it stays.

        Neither the app nor the replica changes. The result says which cut it was, how old, what each step took, and
        that what would run is what the app was: its checksums are compared, and every byte is read again. `failed` says
        whether anything is not. `offsets` are those of `recover`, `reports` files to write it to. Raises as `recover`.
        """
        client = self._client
        channels = client.known_channels("in which the app would go on")
        found = drill(
            client.store,
            self.name,
            client.known_channels(_GOES_ON),
            primary=None if options["alone"] else self._open_primary,
            terms=FailoverTerms(options["mirror"], options["topics"] or {}, offsets or {}),
            by=client.by,
            keep=keep,
            outside=lambda removal: remove_topics(channels, removal),
            doing=doing,
        )
        if reports is not None:
            reports.put(client, shown.page(found))
        return shown.drilled(found)

    def _open_primary(self, root: str) -> ObjectStore:
        from ..store.objects.open import open_store

        return open_store(root, patience_s=_LOOK_S, settings=self._client.settings.s3)


__all__ = ["AppFailover", "Round"]
