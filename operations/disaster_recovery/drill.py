"""`slackwater recover --drill`: all that a recovery does, as a clone that goes again; and what that proves.

Nothing of the app, of its replica's cut or of its topics is touched: the clone has a name, versions and channels of its
own, and shares the SSTs of the replica. What it is made of is compared with the app itself, as far as that can be
reached, and read again to the last byte.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from ...common import instants
from ...errors import NotFound, ObjectNotFound, Refused, SlackwaterError
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.resolve import resolve
from ...snapshot.take.audit_log import record
from ...snapshot.verify.verify import Report, verify
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, keys
from ...store.versions.side_tables import tables_of
from ..maintenance.removal import Removal
from ..staging.clone import ScratchClone
from ..staging.clone_plan import Terms as CloneTerms
from .fence import look
from .recover import Clock
from .recover_plan import FailoverTerms, RecoveryPlan, find_replica, make_plan

REASON = "recovery drill"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class TableProof:
    """One table of the replica's cut."""

    table: str
    version: int
    rows: int
    """Stored, older rows of a key among them."""
    ssts: int
    bytes: int
    checksums: str
    """`equal` to those of the app at that version, `different`, or `not compared`."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What a drill found."""

    app: str
    root: str
    plan: RecoveryPlan
    clone: str
    kept: bool
    """Whether the clone is still there."""
    not_compared: str
    """Why the app itself was not compared with; empty where it was."""
    tables: tuple[TableProof, ...]
    replica: Report
    """The replica's cut, read again."""
    recovered: Report
    """What would run."""
    versions: Mapping[str, int]
    steps: tuple[tuple[str, int], ...]
    """What took how long, in milliseconds."""

    @property
    def passed(self) -> bool:
        """Whether the app could go on from the replica, and is what it was."""
        same = all(each.checksums != "different" for each in self.tables)
        return same and self.replica.consistent and self.recovered.consistent and not self.plan.replicated.lacks

    @property
    def ready_ms(self) -> int:
        """How long it took until the app could have been started."""
        return sum(ms for name, ms in self.steps if name not in _AFTER)


_AFTER = ("compare with the app", "read the replica again", "read what would run again", "remove the clone")
"""Steps of a drill that a recovery does not have."""


def drill(
    target: ObjectStore,
    app: str,
    kafka: Topics,
    *,
    primary: Callable[[str], ObjectStore] | None,
    terms: FailoverTerms,
    by: str,
    keep: bool = False,
    outside: Callable[[Removal], None] = lambda _removal: None,
    doing: Callable[[str], None] = lambda _what: None,
    pause: Callable[[float], None] = time.sleep,
) -> Drill:
    """Try whether an app can be recovered. Arguments as of `recover`.

    `outside` removes the clone's topics, and `pause` waits so many seconds for the removal. With `keep` the clone
    stays. Raises as `recover` where the app could not be recovered.
    """
    name, clock = f"{app}-drill", Clock()
    for attempt in range(_ATTEMPTS):
        found, _ = find_replica(target, app)
        if found.state != "copy":
            raise Refused(
                f"{app} under {target.url} was recovered: there is no replica to drill with",
                hint=f"replicate it to another root: slackwater replicate {app} --store {target.url} --to ROOT",
            )
        old = primary(found.root) if primary is not None else None
        doing(f"looking at {found.root}")
        with clock.step("look at where it runs"):
            there = look(old, found.root, app, found.created_ms, target.url)
        there.check_not_left(app, target.url)
        with clock.step("check the replica and Kafka"):
            plan = make_plan(target, app, kafka, there, terms)
        doing(f"making {name}")
        ref, clone_terms = f"{app}@{plan.replicated.snapshot}", CloneTerms(topics=plan.topics, owner=by, reason=REASON)
        try:
            start, channels = resolve(target, ref, now_ms=0), cast("Topics", _Proved(kafka))
            scratch = ScratchClone(target, ref, start, name, clone_terms, channels, by, outside, partial(pause, 1.0))
            scratch.drop()
            with clock.step("make it ready to run"):
                scratch.make(noted=False)
            break
        except NotFound:  # a new cut took the place of that one meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
            clock.took.clear()
    try:
        doing("comparing and reading again")
        with clock.step("compare with the app"):
            tables, why_not = _compared(old if there.heads else None, target, plan)
        origin = apps.read_app(target, name).origin
        assert origin is not None  # noqa: S101  it is a clone
        with clock.step("read the replica again"):
            replica = verify(target, f"{app}@{origin.snapshot}", now_ms=instants.now_ms(), deep=True, reader=None)
        with clock.step("read what would run again"):
            recovered = verify(target, name, now_ms=instants.now_ms(), deep=True, reader=None)
    finally:
        if not keep:
            with clock.step("remove the clone"):
                scratch.drop()
    done = Drill(
        app,
        target.url,
        plan,
        name,
        keep,
        why_not or there.unreachable,
        tables,
        replica,
        recovered,
        recovered.versions,
        tuple(clock.took),
    )
    record(target, app, "recover --drill", f"{'passed' if done.passed else 'failed'}, as {name}", by)
    return done


class _Proved:
    """Kafka, of which it was asked already where topics are read on: a clone that never runs need not be there."""

    def __init__(self, kafka: Topics) -> None:
        self.ends, self.announce, self.copy = kafka.ends, kafka.announce, kafka.copy
        self.topic_id = kafka.topic_id

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        """It was."""


def _compared(store: ObjectStore | None, target: ObjectStore, plan: RecoveryPlan) -> tuple[tuple[TableProof, ...], str]:
    """Each table, and whether the app has the very same; and why not all could be compared."""
    same: dict[str, str] = {}
    why_not = ""
    for stage, manifest in plan.cut.stages.items():
        same[stage] = "not compared"
        if store is None:
            continue
        key = keys.manifest(plan.app, stage, manifest.version)
        try:
            same[stage] = "equal" if store.get(key) == target.get(key) else "different"
        except ObjectNotFound:
            why_not = f"v{manifest.version} of {stage} was collected there since"
        except SlackwaterError as error:
            why_not = error.message
    return tuple(_proofs(plan, same)), why_not


def _proofs(plan: RecoveryPlan, same: Mapping[str, str]) -> Iterator[TableProof]:
    for stage, manifest in plan.cut.stages.items():
        for name, at in tables_of(manifest, stage).items():
            rows, size = (sum(each) for each in ((s.rows for s in at.ssts), (s.bytes for s in at.ssts)))
            yield TableProof(name, manifest.version, rows, len(at.ssts), size, same[stage])
