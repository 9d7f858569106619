"""What operators do to an app: clones, state partitions, stages that are gone, compaction, garbage, removal."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from .. import instants
from ..durations import format_ms
from ..errors import Refused, Unavailable, Usage
from ..keep.clone.clone import ClonePlan
from ..keep.clone.clone import clone as make_clone
from ..keep.clone.first_versions import has_run
from ..keep.gc.collect import MARGIN_MS, collect, explain
from ..keep.maintain.compact import AppCompactor, Compacted, merged_last, plan
from ..keep.maintain.removal import Removal, remove_app
from ..keep.maintain.stages import rescale, retire
from ..pipeline.kafka.channels import group_of
from ..results import kept, snapshots
from ..results.formats import store_flag
from ..results.shown import Result
from .search import SearchedApp

if TYPE_CHECKING:
    pass


class KeptApp(SearchedApp):
    """An app and what guards and changes what is stored of it.

    Whatever changes it raises `Unavailable` when the store or Kafka does not answer; the same call again finishes what
    was begun.
    """

    def clone(
        self,
        to: str,
        *,
        at: str | datetime = "now",
        topics: Mapping[str, str] | None = None,
        sinks: Mapping[str, str] | None = None,
        store: str | None = None,
    ) -> Self:
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
        """
        self._clone(self._ref(at), to, store, topics=topics or {}, sinks=sinks)
        return type(self)(self._client.beside(store), to)

    def cloned(self, source: str, to: str, store: str | None, *, dry_run: bool, **chosen: Mapping[str, str]) -> Result:
        """As `clone`, from a whole ref, with `topics` and `sinks`; tells what was done, or would be."""
        client = self._client
        plan = self._clone(source, to, store, dry_run=dry_run, **chosen)
        client.note_thinned(source, plan.source.thinned)
        runs = plan.done and has_run(client.beside(store).store, plan.info)
        return snapshots.cloned(plan, source, store_flag(store) or client.flags, runs=runs, dry_run=dry_run)

    def _clone(self, source: str, to: str, store: str | None, **chosen: Any) -> ClonePlan:
        client = self._client
        channels = client.known_channels("in which a clone has topics of its own")
        target = client.beside(store).store
        return make_clone(client.store, source, to, channels=channels, target_store=target, by=client.by, **chosen)

    def rescale(self, stage: str, partitions: int, *, dry_run: bool = False) -> Result:
        """Change the number of state partitions of a stage's table. Raises `NotFound` for it, and `Refused`."""
        client, now_ms = self._client, instants.now_ms()
        done = rescale(client.store, self.name, stage, partitions, by=client.by, now_ms=now_ms, dry_run=dry_run)
        return kept.rescaled(done, dry_run=dry_run)

    def retire(self, stage: str, *, dry_run: bool = False) -> Result:
        """Let the app go on without a stage that is gone from its program; its consumer group goes, too.

        Raises `NotFound` where there is none, and `Refused` where another stage reads what it sends.
        """
        client, group = self._client, group_of(self.name, stage)
        done = retire(client.store, self.name, stage, by=client.by, now_ms=instants.now_ms(), dry_run=dry_run)
        try:
            if client.settings.brokers and not dry_run:
                client.settings.open_kafka().delete_groups([group])  # its lag would only grow
        except Unavailable as error:
            client.note(f"the consumer group {group} is still there: {error.message}")
        return kept.retired(done, client.flags, dry_run=dry_run)

    def compact(
        self,
        stages: Sequence[str] = (),
        *,
        threads: int = 1,
        full: bool = False,
        dry_run: bool = False,
        on_version: Callable[[Compacted], None] = lambda _done: None,
    ) -> Result:
        """Merge the SSTs of all tables, or of some stages', as each table's policy calls for, or with `full` all.

        Raises `NotFound` for a stage that there is not, and `Refused` for one without a table.
        """
        if dry_run:
            return kept.to_compact(self.name, plan(self._client.store, self.name, tuple(stages), full=full))
        compactor = self.compactor(stages, threads, Event())
        done = compactor.once(full=full, on_version=on_version)
        earlier = () if done else merged_last(self._client.store, self.name, compactor.wanted)
        return kept.compacted(self.name, done, earlier)

    def compactor(self, stages: Sequence[str], threads: int, stop: Event) -> AppCompactor:
        """What merges with so many threads what is due, until `stop`."""
        client, wanted = self._client, tuple(stages)
        now_ms = instants.now_ms
        return AppCompactor(
            client.store, client.cache, self.name, wanted, by=client.by, threads=threads, now_ms=now_ms, stop=stop
        )

    def gc(
        self, *, margin_ms: int = MARGIN_MS, explained: str = "", dry_run: bool = False, **rules: int | None
    ) -> Result:
        """Collect versions that retention lets go, and objects that nothing names.

        Args:
            margin_ms: how long nothing has named these, an hour or more.
            explained: an object of which to say why it is kept, or not; nothing is collected then.
            dry_run: only look.
            rules: `all_ms`, `hourly_ms`, `daily_ms` and `versions`, before those of the settings.

        Raises `Usage` for a shorter margin, and `NotFound` for the app or the object.
        """
        client = self._client
        retention = client.settings.retention_of(self.name, **rules)
        if margin_ms < MARGIN_MS:
            raise Usage(
                f"--margin is {format_ms(margin_ms)}; expected 1h or more: what a merge writes may be half an hour old "
                "before a version names it",
                hint="leave --margin away; what nothing names goes after an hour",
            )
        if explained:
            return kept.explained(explain(client.store, self.name, explained, retention, margin_ms=margin_ms))
        done = collect(client.store, self.name, retention, by=client.by, dry_run=dry_run, margin_ms=margin_ms)
        return kept.collected(done)

    def remove(
        self, *, topics: bool = False, fence: bool = False, force: bool = False, dry_run: bool = False
    ) -> Result:
        """Remove the app: its tables, its history, its snapshots. Nothing of it can be brought back.

        Args:
            topics: also its repartition topics and consumer groups in Kafka.
            fence: also when a runner holds it: that stops.
            force: also when clones live from it: these are damaged then.
            dry_run: only look.

        Raises:
            Usage: nothing says where Kafka is, for `topics`.
            NotFound: there is no such app.
            Refused: a clone lives from it, or a runner holds it; or Kafka does not let topics be removed.
        """
        client = self._client
        # Says what is missing before anything is done.
        channels = client.known_channels("which have its topics") if topics else None

        def groups(removal: Removal) -> tuple[str, ...]:
            return tuple(group_of(removal.app, stage) for stage in removal.stages)

        def outside(removal: Removal) -> None:
            if channels is None:
                return
            if refused := channels.kafka.delete_topics(removal.topics):
                raise Refused(
                    f"Kafka does not let these topics of {removal.app} be removed: {', '.join(refused)}",
                    hint="remove them yourself, then say it again without --topics",
                )
            channels.kafka.delete_groups(groups(removal))

        done = remove_app(
            client.store,
            self.name,
            by=client.by,
            now_ms=instants.now_ms(),
            fence=fence,
            force=force,
            dry_run=dry_run,
            outside=outside,
            on_wait=client.note,
        )
        return kept.removed(done, groups(done.removal), topics=topics, dry_run=dry_run)
