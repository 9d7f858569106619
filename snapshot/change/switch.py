"""Switch of a promotion: both apps are prepared, then one note decides.

If the process dies, a later command completes or withdraws the switch.

1. The new app's stages get the sinks, each by a version of kind `promote` after a version at the target offsets.
   Rows that it writes for sinks wait for the decision: no publisher starts before.
2. The old app's stages are fenced, each by a version of kind `demote` after a version at the target
   offsets with everything published. From now on the old app can commit nothing.
3. The name's note records the switch. It is created if absent, so a promotion is decided
   once, or withdrawn once: by this call if a stage has moved on, or by a new run of the old app.
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
    """A stage has left the required position, or the promotion was withdrawn; the promotion did not happen."""


@dataclass(slots=True)
class Switch:
    """One promotion, as recorded in versions of the new app and of the old one."""

    promote: Promotion
    demote: Promotion
    over: str
    """Folder of the old app."""
    by: str
    back: bool = False
    """True if the promotion gives the name back."""
    made: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Previous and committed version, by app and stage."""

    @property
    def to(self) -> str:
        """Folder of the new app."""
        return self.promote.to

    def prepare(self, store: ObjectStore, kafka: Topics, heads: Iterable[Mapping[str, Manifest]], now_ms: int) -> None:
        """Commit the missing versions of both apps; `heads` are the newest versions of the old and the new one.

        Raises `MovedOn` if a stage is at another position, `Refused` if all stages are retired, and the errors of
        `amend`.
        """
        old, new = heads
        if all(head.retired for head in new.values()):
            raise Refused(f"every stage of {self.to} is retired: it may be being removed")
        for stage in order(new):
            if not new[stage].retired:
                self._amend(store, new[stage], self._promotion_amendment(store, kafka, new[stage]), now_ms)
        for stage in order(old):
            if not old[stage].retired:
                change = Amendment("demote", self._demoted, self._precondition(store, self.demote))
                self._amend(store, old[stage], change, now_ms)
        # A removal that writes this note later will find and withdraw the prepared promotion.
        if exists(store, keys.removing(self.to)):
            raise MovedOn(f"{self.to} is being removed")

    def decide(self, store: ObjectStore, now_ms: int) -> None:
        """Record that the name moves to the new app. Raises `MovedOn` if another decision came first."""
        promotion = self.promote
        note = apps.NameNote(promotion.name, promotion.number, self.to, self.over, self.by, now_ms, self.back)
        winner = apps.NAMES.add(store, note)
        if winner.folder != self.to:
            outcome = "withdrawn" if winner.withdrawn else f"preceded by that of {winner.folder}"
            raise MovedOn(f"the promotion of {self.to} over {promotion.name} was {outcome}, by {winner.by}")

    def _amend(self, store: ObjectStore, head: Manifest, change: Amendment, now_ms: int) -> None:
        done = amend(store, head, change, by=self.by, now_ms=now_ms)
        if done.changed:
            version = done.manifest.version
            self.made.setdefault(head.app, {})[head.stage] = (version - 1, version)

    def _precondition(self, store: ObjectStore, promotion: Promotion) -> Callable[[Manifest], bool]:
        def requires(head: Manifest) -> bool:
            if head.promotion == promotion:
                return False
            if why := short_of(store, head, Standing(promotion.at, promotion.clock_ms)):
                raise MovedOn(why)
            return True

        return requires

    def _demoted(self, draft: Manifest) -> Manifest:
        # The sinks stay, and continue if the promotion is withdrawn.
        return replace(draft, promotion=self.demote)

    def _promotion_amendment(self, store: ObjectStore, kafka: Topics, head: Manifest) -> Amendment:
        ends: dict[str, tuple[str, int, str]] = {}
        is_ready = self._precondition(store, self.promote)

        def requires(head: Manifest) -> bool:
            if not is_ready(head):
                return False
            for name in self._published_sinks(head):
                topic = internal_topic(head.app, head.stage, name)
                ends[name] = (topic, *kafka.internal(topic))
            return True

        def update(draft: Manifest) -> Manifest:
            sinks = {
                name: Sink(topic, end, draft.version, kind, topic_id=topic_id)
                for name, kind in self._published_sinks(draft).items()
                for topic, end, topic_id in [ends[name]]
            }
            silent = {name: kind for name, kind in declared(draft).items() if name not in sinks}
            return replace(draft, sinks=sinks, silent=silent, promotion=self.promote)

        return Amendment("promote", update, requires)

    def _published_sinks(self, head: Manifest) -> dict[str, SinkKind]:
        topics = self.promote.sinks
        return {name: kind for name, kind in declared(head).items() if topics is None or name in topics}


def declared(head: Manifest) -> dict[str, SinkKind]:
    """Return the sinks that a stage's program declares, published or not, as of the last claim."""
    return head.silent | {name: sink.kind for name, sink in head.sinks.items()}


def withdraw(store: ObjectStore, promotion: Promotion, over: str, *, by: str, now_ms: int) -> bool:
    """Withdraw a promotion over the app in this folder. Returns False if it was decided before."""
    note = apps.NameNote(promotion.name, promotion.number, over, over, by, now_ms)
    return apps.NAMES.add(store, note).folder != promotion.to


def settled(
    store: ObjectStore, heads: Iterable[Manifest], *, by: str, now_ms: int, claims: Collection[str] = ()
) -> Promotion | None:
    """Return the newest promotion that an app takes part in, decided or not, before the app's stages are run.

    Withdraws an undecided promotion over this app, and one to this app if a stage to be claimed is not prepared:
    the claim would give it the sinks without asking if it may publish. Costs no request for
    an app without promotions.
    """
    manifests = tuple(heads)
    newest = newest_of(manifests)
    prepared = {head.stage for head in manifests if head.promotion == newest or head.retired}
    is_ready = newest is not None and newest.to == manifests[0].app and prepared.issuperset(claims)
    if newest is not None and not is_ready and apps.outcome(store, newest) is None:
        withdraw(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)
    return newest


def give_up(store: ObjectStore, app: str, heads: Iterable[Manifest], *, by: str, now_ms: int) -> None:
    """Withdraw a prepared, undecided promotion of this app, before the app is removed."""
    newest = newest_of(heads)
    if newest is not None and newest.to == app and apps.outcome(store, newest) is None:
        withdraw(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)


def newest_of(heads: Iterable[Manifest]) -> Promotion | None:
    """Return the newest promotion in an app's versions."""
    promotions = (head.promotion for head in heads if head.promotion is not None)
    return max(promotions, key=lambda promotion: promotion.number, default=None)
