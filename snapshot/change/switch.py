"""The switch: both apps are prepared, then one note decides. Whoever dies in between is finished, or withdrawn, later.

1. The new app's stages get the sinks, each by a version of kind `promote` behind one that stands at the offsets. What
   it writes for them from there on waits for the decision: no publisher begins before it.
2. The old app's stages are taken from their runner, each by a version of kind `demote` behind one that stands at the
   offsets with all published. From here on nothing can come of it.
3. The name's note says that the name went over. It is put where there is none of its number, so a promotion is decided
   once, or withdrawn once: by this call, which finds that a stage has moved on, or by whoever runs the old app again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...errors import Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import apps, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Manifest, Promotion, Sink, SinkKind
from ..cut.graph import order
from ..cut.kafka_topics import Topics, internal_topic
from .standing import Standing, short_of


class MovedOn(SlackwaterError):
    """A stage stands no more where it has to, or the promotion was withdrawn: nothing came of this one."""


@dataclass(slots=True)
class Switch:
    """One promotion: its mark in the new app's versions, and in the old one's."""

    promote: Promotion
    demote: Promotion
    over: str
    """The old app's folder."""
    by: str
    back: bool = False
    """Whether it gives the name back."""
    made: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """By app and stage, the version before and the one that it made."""

    @property
    def to(self) -> str:
        """The new app's folder."""
        return self.promote.to

    def prepare(self, store: ObjectStore, kafka: Topics, heads: Iterable[Mapping[str, Manifest]], now_ms: int) -> None:
        """Commit what is missing of both apps' versions; `heads` are the newest of the old one's and the new one's.

        Raises `MovedOn` where a stage stands elsewhere, `Refused` where none is left, and what `amend` raises.
        """
        old, new = heads
        if all(head.retired for head in new.values()):
            raise Refused(f"every stage of {self.to} is retired: it may be removed at this moment")
        for stage in order(new):
            if not new[stage].retired:
                self._amend(store, new[stage], self._promoting(store, kafka, new[stage]), now_ms)
        for stage in order(old):
            if not old[stage].retired:
                change = Amendment("demote", self._demoted, self._requires(store, self.demote))
                self._amend(store, old[stage], change, now_ms)
        # Whoever removes it looks for what was prepared once this note is there, and withdraws that.
        if exists(store, keys.removing(self.to)):
            raise MovedOn(f"{self.to} is being removed")

    def decide(self, store: ObjectStore, now_ms: int) -> None:
        """Say that the name went over. Raises `MovedOn` where the promotion was withdrawn, or another one decided."""
        mark = self.promote
        wanted = apps.NameNote(mark.name, mark.number, self.to, self.over, self.by, now_ms, self.back)
        found = apps.NAMES.add(store, wanted)
        if found.folder != self.to:
            what = "withdrawn" if found.withdrawn else f"overtaken by that of {found.folder}"
            raise MovedOn(f"the promotion of {self.to} over {mark.name} was {what}, by {found.by}")

    def _amend(self, store: ObjectStore, head: Manifest, change: Amendment, now_ms: int) -> None:
        done = amend(store, head, change, by=self.by, now_ms=now_ms)
        if done.changed:
            version = done.manifest.version
            self.made.setdefault(head.app, {})[head.stage] = (version - 1, version)

    def _requires(self, store: ObjectStore, mark: Promotion) -> Callable[[Manifest], bool]:
        def requires(head: Manifest) -> bool:
            if head.promotion == mark:
                return False
            if why := short_of(store, head, Standing(mark.at, mark.clock_ms)):
                raise MovedOn(why)
            return True

        return requires

    def _demoted(self, draft: Manifest) -> Manifest:
        # Its sinks stay: they go on where they are, should it be withdrawn.
        return replace(draft, promotion=self.demote)

    def _promoting(self, store: ObjectStore, kafka: Topics, head: Manifest) -> Amendment:
        ends: dict[str, tuple[str, int, str]] = {}
        stands = self._requires(store, self.promote)

        def requires(head: Manifest) -> bool:
            if not stands(head):
                return False
            for name in self._published(head):
                topic = internal_topic(head.app, head.stage, name)
                ends[name] = (topic, *kafka.internal(topic))
            return True

        def update(draft: Manifest) -> Manifest:
            sinks = {
                name: Sink(topic, end, draft.version, kind, topic_id=topic_id)
                for name, kind in self._published(draft).items()
                for topic, end, topic_id in [ends[name]]
            }
            silent = {name: kind for name, kind in declared(draft).items() if name not in sinks}
            return replace(draft, sinks=sinks, silent=silent, promotion=self.promote)

        return Amendment("promote", update, requires)

    def _published(self, head: Manifest) -> dict[str, SinkKind]:
        topics = self.promote.sinks
        return {name: kind for name, kind in declared(head).items() if topics is None or name in topics}


def declared(head: Manifest) -> dict[str, SinkKind]:
    """The sinks that a stage's program has, whether they are published or not, as of its last claim."""
    return head.silent | {name: sink.kind for name, sink in head.sinks.items()}


def withdraw(store: ObjectStore, promotion: Promotion, over: str, *, by: str, now_ms: int) -> bool:
    """Say that nothing comes of a promotion over the app of this folder. False where it was decided before."""
    wanted = apps.NameNote(promotion.name, promotion.number, over, over, by, now_ms)
    return apps.NAMES.add(store, wanted).folder != promotion.to


def settled(
    store: ObjectStore, heads: Iterable[Manifest], *, by: str, now_ms: int, claims: Collection[str] = ()
) -> Promotion | None:
    """The newest promotion that an app takes part in, which counts or not. For whoever is about to run its stages.

    One that is undecided is withdrawn where it is over this app. So it is where a stage that is about to be claimed is
    not prepared: by the others the claim would give it the sinks, and nobody would ask whether it may publish them. No
    request for an app that never took part in any.
    """
    found = tuple(heads)
    newest = newest_of(found)
    prepared = {head.stage for head in found if head.promotion == newest or head.retired}
    is_ready = newest is not None and newest.to == found[0].app and prepared.issuperset(claims)
    if newest is not None and not is_ready and apps.outcome(store, newest) is None:
        withdraw(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)
    return newest


def give_up(store: ObjectStore, app: str, heads: Iterable[Manifest], *, by: str, now_ms: int) -> None:
    """Withdraw a promotion of this app that is prepared and not decided, for whoever is about to remove it."""
    newest = newest_of(heads)
    if newest is not None and newest.to == app and apps.outcome(store, newest) is None:
        withdraw(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)


def newest_of(heads: Iterable[Manifest]) -> Promotion | None:
    """The newest promotion that stages of an app went through."""
    found = (head.promotion for head in heads if head.promotion is not None)
    return max(found, key=lambda each: each.number, default=None)
