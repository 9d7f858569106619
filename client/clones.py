"""`AppClones`: methods of an app that create, refresh and remove clones, and that remove the app."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..common import instants
from ..common.arguments import check_method_arguments
from ..common.durations import parse_ms
from ..errors import Refused, SlackwaterError
from ..operations.maintenance import removal
from ..operations.maintenance.removal import Removal, Removed, remove_app
from ..operations.staging.clone import clone as make_clone
from ..operations.staging.clone_plan import CloneTerms
from ..operations.staging.listing import KnownClone, list_clones
from ..operations.staging.refresh import origin_of, refresh
from ..pipeline.kafka.channels import consumer_group
from ..snapshot.change.first_versions import has_run
from ..snapshot.take.taking import has_only_attached_stages
from ..snapshot.under_way.exclusion import RUNS_ELSEWHERE, Intent, check_exclusion
from ..store.versions.apps import find_app, folder_of, promoted_names, replace_name_by_folder
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

CopyProgress = Callable[[int, int], None]
"""Function of two numbers: copied SSTs, and all SSTs to copy."""


@check_method_arguments
class AppClones(AppHistory):
    """Methods of an app that create, refresh and remove clones, and that remove the app."""

    def clone(
        self, to: str, *, at: When = "now", store: str | None = None, ttl: str = "", **options: Unpack[CloneOptions]
    ) -> Self:
        """Make a new app from a moment of this app. State is copied only with `deep` or `masks`.

        Args:
            to: the new app's name.
            at: the moment, in a form that the method `at` takes.
            store: the store root of the new app; default the root of this app.
            ttl: time to live, such as `"3d"`, after which the client's `remove_expired` removes the clone; default no
                limit.

        Returns:
            The new app, which has not run yet.

        Raises:
            Usage: the name, the moment, a mask or `ttl` is malformed, or no Kafka is configured.
            NotFound: the moment, a topic, a sink or a column does not exist.
            Refused: the name is taken, a topic does not have the offsets, in-flight records are lost, or a column
                cannot be masked.
            Forbidden: this user may not create a snapshot in the source, which would keep the moment.
        """
        self.clone_ref(self._ref(at), to, store, parse_ms("ttl", ttl) if ttl else 0, options)
        return type(self)(self._client.at_root(store), to)

    def clone_ref(
        self,
        source: str,
        to: str,
        store: str | None,
        ttl_ms: int,
        options: CloneOptions,
        *,
        dry_run: bool = False,
        on_progress: CopyProgress = lambda _done, _all: None,
    ) -> Result:
        """Clone the moment of the ref `source`, and return the result to print. A `ttl_ms` of 0 means no expiry."""
        client, target = self._client, self._client.at_root(store).store
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value}
        terms = CloneTerms(**{"owner": client.by, **chosen}, ttl_ms=ttl_ms)
        with client.channels_for_clone(self.name, must_check_offsets=bool(terms.topics or terms.sinks)) as channels:
            result = make_clone(
                client.store,
                replace_name_by_folder(client.store, source),
                to,
                terms=terms,
                channels=channels,
                target_store=target,
                cache=client.cache,
                by=client.by,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        client.note_thinned(source, result.source.thinned)
        runs = result.done and has_run(target, result.info)
        return shown.clone_result(result, source, store, runs=runs, dry_run=dry_run)

    def refresh(
        self, *, on_progress: CopyProgress = lambda _done, _all: None, **options: Unpack[RefreshOptions]
    ) -> Result:
        """Recreate this clone from the newest moment of its source.

        Raises:
            NotFound: the app does not exist.
            Refused: the app is no clone, is a full copy, has clones itself, was promoted over another app, or could not
                be recreated.
        """
        client, dry_run = self._client, options["dry_run"]
        self._check_allowed("to refresh it", options)
        check_exclusion(client.store, self.name, Intent.REFRESH, *RUNS_ELSEWHERE, dry_run=dry_run)
        # An interrupted refresh may have removed half of the clone, so its terms are read from the source.
        made_from = origin_of(client.store, self.name)
        source = client.at_root(made_from.root)
        is_copy = source.channels() is None or has_only_attached_stages(source.store, made_from.app)
        with source.channels_for_clone(made_from.app, must_check_offsets=False) as channels:
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
                # The positions of sinks in the old clone have no meaning in the new clone. The new clone reuses the
                # topics.
                remove_topics=lambda removal: (
                    None if is_copy else channels.kafka.delete_groups(_consumer_groups(removal))
                ),
                on_wait=client.note,
            )
        origin, folder = done.info.origin, done.source.app
        name = promoted_names(client.store.at(origin.root if origin else "")).get(folder, folder)
        return shown.refresh_result(done, name, dry_run=dry_run)

    def remove(self, **options: Unpack[RemoveOptions]) -> Result:
        """Remove the app. For a clone, also remove the snapshot that kept the clone's files in the source.

        Raises:
            Usage: `topics` is set and no Kafka is configured.
            NotFound: the app does not exist.
            Refused: a clone uses its files, a runner holds it, it was promoted over another app, or Kafka denies the
                removal of topics.
        """
        topics, dry_run = options["topics"], options["dry_run"]
        self._check_allowed("to remove it", options)
        done = _remove(self._client, self.name, options, force=options["force"])
        return maintenance.removal_result(
            done, self.called, _consumer_groups(done.removal), topics=topics, dry_run=dry_run
        )

    def remove_clone(self, **options: Unpack[RemoveCloneOptions]) -> Result:
        """Remove the app if it is a clone, even an incomplete one.

        Raises the errors of `remove`, and `Refused` for an app that is no clone.
        """
        store = self._client.store
        info = find_app(store, self.name)
        if info is not None and info.origin is None:
            raise Refused(
                f"app {self.called!r} is not a clone: nothing was removed",
                hint=f"`slackwater clone list` shows the clones; `slackwater app rm {self.called}` removes any app",
            )
        return self.remove(**options)

    def _check_allowed(self, action: str, options: GuardedOptions) -> None:
        """Raise `Protected` if the app is protected and `yes_really` is not its name. Allows any dry run."""
        if not options["dry_run"]:
            removal.check_protected(self._client.store, self.name, action, options["yes_really"], self.called)


def clones_result(client: Backends, source: str) -> Result:
    """List the clones of a store. See `Client.clones`."""
    return shown.clone_list_result(_clones(client, source), source, instants.now_ms(), client.root)


def remove_expired(client: Backends, source: str, options: ExpiredOptions) -> Result:
    """Remove the expired clones. See `Client.remove_expired`."""
    now_ms = instants.now_ms()
    ended = [clone for clone in _clones(client, source) if clone.root == client.root and clone.is_past_ttl(now_ms)]
    removed: list[Removed] = []
    errors: dict[str, SlackwaterError] = {}
    for expired in [clone for clone in ended if clone.is_expired(now_ms)]:
        try:
            removal.check_protected(client.store, expired.name, "to remove it", "")
            removed.append(_remove(client, expired.name, options))
        except Refused as error:  # continue with the others
            errors[expired.name] = error
    promoted = {clone.name: clone.called for clone in ended if clone.called}
    return shown.expired_clones_result(removed, errors, promoted, dry_run=options["dry_run"])


def _clones(client: Backends, source: str) -> tuple[KnownClone, ...]:
    return list_clones(client.store, folder_of(client.store, source) if source else "")


def _remove(client: Backends, name: str, options: ExpiredOptions, *, force: bool = False) -> Removed:
    # Raises before anything is removed.
    channels = client.require_channels("to delete its topics") if options["topics"] else None
    return remove_app(
        client.store,
        name,
        by=client.by,
        now_ms=instants.now_ms(),
        fence=options["fence"],
        force=force,
        dry_run=options["dry_run"],
        remove_topics=lambda removal: remove_topics(channels, removal),
        on_wait=client.note,
    )


def remove_topics(channels: "KafkaChannels | None", removal: Removal) -> None:
    """Delete a removed app's topics and consumer groups. Raises `Refused` if Kafka denies the deletion."""
    if channels is None:
        return
    if refused := channels.kafka.delete_topics(removal.topics):
        why = f"Kafka denied the deletion of these topics of {removal.app}: {', '.join(refused)}"
        raise Refused(why, hint="delete them yourself, then run it again without --topics")
    channels.kafka.delete_groups(_consumer_groups(removal))


def _consumer_groups(removal: Removal) -> tuple[str, ...]:
    return tuple(consumer_group(removal.app, stage) for stage in removal.stages)
