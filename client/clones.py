"""Clones of an app: made, made anew, and removed; and the removal of any app."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..common import instants
from ..common.argument_types import checked_methods
from ..common.durations import parse_ms
from ..errors import Refused, SlackwaterError
from ..operations.maintenance import protection
from ..operations.maintenance.removal import Removal, Removed, remove_app
from ..operations.staging.clone import clone as make_clone
from ..operations.staging.clone_plan import Terms
from ..operations.staging.listing import KnownClone, clones
from ..operations.staging.refresh import origin_of, refresh
from ..pipeline.kafka.channels import group_of
from ..snapshot.change.first_versions import has_run
from ..snapshot.take.waiting import asks_nobody
from ..store.versions.apps import called, find_app, folder_of, in_folder
from .backends import Backends
from .declared.operations import (
    CloneOptions,
    ExpiredOptions,
    GuardedOptions,
    RefreshOptions,
    RemoveCloneOptions,
    RemoveOptions,
)
from .declared.questions import When
from .history import AppHistory
from .show import maintenance
from .show import snapshots as shown
from .show.shown import Result

if TYPE_CHECKING:
    from ..pipeline.kafka.channels import KafkaChannels

Progress = Callable[[int, int], None]
"""Told how many SSTs are copied, and of how many."""


@checked_methods
class AppClones(AppHistory):
    """What makes an app of another one, and what removes one."""

    def clone(
        self,
        to: str,
        *,
        at: When = "now",
        store: str | None = None,
        ttl: str = "",
        **options: Unpack[CloneOptions],
    ) -> Self:
        """Make a new app from a moment of this one. State is copied only where `deep` or `masks` say so.

        Args:
            to: the new app's name.
            at: the moment, as `at` takes it.
            store: the store root of the new app; default the same.
            ttl: how long it is wanted, as `"3d"`; default for as long as nobody removes it. `remove_expired` of the
                client then removes it.

        Returns:
            The new app, which has not begun to run.

        Raises:
            Usage: the name, the moment, a mask or the span is malformed, or nothing says where Kafka is.
            NotFound: there is no such moment, topic, sink or column.
            Refused: the name is taken, a topic does not hold the offsets, records in flight are gone, or a column
                cannot be hidden.
            Forbidden: this user may not pin the moment in the source.
        """
        self.cloned(self._ref(at), to, store, parse_ms("ttl", ttl) if ttl else 0, options)
        return type(self)(self._client.beside(store), to)

    def cloned(
        self,
        source: str,
        to: str,
        store: str | None,
        ttl_ms: int,
        options: CloneOptions,
        *,
        dry_run: bool = False,
        on_progress: Progress = lambda _done, _all: None,
    ) -> Result:
        """Clone from a whole ref, as `clone` does; `ttl_ms` 0 is for ever. Tells what was done, or would be."""
        client, target = self._client, self._client.beside(store).store
        said: dict[str, Any] = {name: value for name, value in options.items() if value}
        terms = Terms(**{"owner": client.by, **said}, ttl_ms=ttl_ms)
        with client.channels_of_clone(self.name, asks=bool(terms.topics or terms.sinks)) as channels:
            made = make_clone(
                client.store,
                in_folder(client.store, source),
                to,
                terms=terms,
                channels=channels,
                target_store=target,
                cache=client.cache,
                by=client.by,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        client.note_thinned(source, made.source.thinned)
        runs = made.done and has_run(target, made.info)
        return shown.cloned(made, source, store, runs=runs, dry_run=dry_run)

    def refresh(self, *, on_progress: Progress = lambda _done, _all: None, **options: Unpack[RefreshOptions]) -> Result:
        """Make this clone anew.

        Raises:
            NotFound: there is no such app.
            Refused: it is no clone, has everything of its own, others live from it, it has the name of another app by a
                promotion, or it could not be made anew.
        """
        client, dry_run = self._client, options["dry_run"]
        self._check_allowed("to make it anew", options)
        # Of the clone itself, half may be gone: the source says what it is, and has the archive.
        made_from = origin_of(client.store, self.name)
        source = client.beside(made_from.root)
        is_copy = source.channels() is None or asks_nobody(source.store, made_from.app)
        with source.channels_of_clone(made_from.app, asks=False) as channels:
            done = refresh(
                client.store,
                self.name,
                channels=channels,
                cache=client.cache,
                by=client.by,
                now_ms=instants.now_ms(),
                dry_run=dry_run,
                on_progress=on_progress,
                fence=options["fence"],
                # Where its sinks were, is no place in what they will be. Its topics become those of the new one.
                outside=lambda removal: None if is_copy else channels.kafka.delete_groups(_groups(removal)),
                on_wait=client.note,
            )
        origin, folder = done.info.origin, done.source.app
        name = called(client.store.at(origin.root if origin else "")).get(folder, folder)
        return shown.refreshed(done, name, dry_run=dry_run)

    def remove(self, **options: Unpack[RemoveOptions]) -> Result:
        """Remove the app. Of a clone, the snapshot that kept what it shared goes with it.

        Raises:
            Usage: nothing says where Kafka is, for `topics`.
            NotFound: there is no such app.
            Refused: a clone lives from it, a runner holds it, or it has the name of another app by a promotion; or
                Kafka does not let topics be removed.
        """
        topics, dry_run = options["topics"], options["dry_run"]
        self._check_allowed("to remove it", options)
        done = _removed(self._client, self.name, options, force=options["force"])
        return maintenance.removed(done, self.called, _groups(done.removal), topics=topics, dry_run=dry_run)

    def remove_clone(self, **options: Unpack[RemoveCloneOptions]) -> Result:
        """`remove`, of a clone alone, half a one too. Raises as that, and `Refused` where it is no clone."""
        store = self._client.store
        info = find_app(store, self.name)
        if info is not None and info.origin is None:
            raise Refused(
                f"app {self.called!r} is no clone: nothing was removed",
                hint=f"`slackwater clone list` shows the clones; `slackwater app rm {self.called}` removes any app",
            )
        return self.remove(**options)

    def _check_allowed(self, what: str, options: GuardedOptions) -> None:
        """Raise `Protected` where the app is, and its name was not typed."""
        if not options["dry_run"]:
            protection.check(self._client.store, self.name, what, options["yes_really"], self.called)


def listed(client: Backends, source: str) -> Result:
    """The clones that the store knows of; see `Client.clones`."""
    return shown.listed(_clones(client, source), source, instants.now_ms(), client.root)


def remove_expired(client: Backends, source: str, options: ExpiredOptions) -> Result:
    """Remove the clones whose time is over; see `Client.remove_expired`."""
    now_ms = instants.now_ms()
    over = [each for each in _clones(client, source) if each.root == client.root and each.is_over(now_ms)]
    gone: list[Removed] = []
    left: dict[str, SlackwaterError] = {}
    for each in [each for each in over if each.is_expired(now_ms)]:
        try:
            protection.check(client.store, each.name, "to remove it", "")
            gone.append(_removed(client, each.name, options))
        except Refused as error:  # the others all the same
            left[each.name] = error
    promoted = {each.name: each.called for each in over if each.called}
    return shown.expired(gone, left, promoted, dry_run=options["dry_run"])


def _clones(client: Backends, source: str) -> tuple[KnownClone, ...]:
    return clones(client.store, folder_of(client.store, source) if source else "")


def _removed(client: Backends, name: str, options: ExpiredOptions, *, force: bool = False) -> Removed:
    # Says what is missing before anything is done.
    channels = client.known_channels("which have its topics") if options["topics"] else None
    return remove_app(
        client.store,
        name,
        by=client.by,
        now_ms=instants.now_ms(),
        fence=options["fence"],
        force=force,
        dry_run=options["dry_run"],
        outside=lambda removal: remove_topics(channels, removal),
        on_wait=client.note,
    )


def remove_topics(channels: "KafkaChannels | None", removal: Removal) -> None:
    """Remove what an app that goes has in Kafka. Raises `Refused` where Kafka does not let us."""
    if channels is None:
        return
    if refused := channels.kafka.delete_topics(removal.topics):
        why = f"Kafka does not let these topics of {removal.app} be removed: {', '.join(refused)}"
        raise Refused(why, hint="remove them yourself, then say it again without --topics")
    channels.kafka.delete_groups(_groups(removal))


def _groups(removal: Removal) -> tuple[str, ...]:
    return tuple(group_of(removal.app, stage) for stage in removal.stages)
