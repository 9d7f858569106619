"""`slackwater recover --drill`: recovers a clone of the replica, to test a recovery, and verifies the result.

The app, the replica's cut and their topics are not touched: the clone has its own name, versions and channels, and
shares the SSTs of the replica. A drill reads all bytes of the replica's tables, and compares the tables with the app's
tables if the app's store is reachable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from ...common import instants, runtime
from ...errors import NotFound, ObjectNotFound, Refused, SlackwaterError
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.replicas import Replica
from ...snapshot.cut.resolve import resolve
from ...snapshot.take.audit_log import record_operation
from ...snapshot.verify.verify import Report, verify
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, keys
from ...store.versions.side_tables import tables_of
from ..maintenance.removal import Removal
from ..staging.clone import clone, remove_temporary_clone
from ..staging.clone_plan import CloneTerms as CloneTerms
from .fence import inspect_primary
from .recover import StepTimer, make_checked_plan
from .recover_plan import FailoverTerms, RecoveryPlan, find_replica

REASON = "recovery drill"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class TableCheck:
    """Result of checking one table of the replica's cut."""

    table: str
    version: int
    rows: int
    ssts: int
    bytes: int
    checksums: str
    """Result of comparing checksums with the app's version: `equal`, `different` or `not compared`."""


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of a recovery drill."""

    app: str
    root: str
    plan: RecoveryPlan
    clone: str
    kept: bool
    not_compared: str
    tables: tuple[TableCheck, ...]
    replica: Report
    recovered: Report
    """Verification of the clone, which has the state from which a recovered app would continue."""
    versions: Mapping[str, int]
    steps: tuple[tuple[str, int], ...]

    @property
    def passed(self) -> bool:
        """True if a recovered app could continue, and no compared table differs from the app's table."""
        same = all(table.checksums != "different" for table in self.tables)
        return same and self.replica.consistent and self.recovered.consistent and not self.plan.replicated.lacks

    @property
    def ready_ms(self) -> int:
        """Milliseconds that a recovery would have taken until the app could be started."""
        return sum(ms for name, ms in self.steps if name not in _NOT_OF_RECOVERY)


_NOT_OF_RECOVERY = ("compare with the app", "read the replica", "read the recovered app", "remove the clone")
"""Steps of a drill that are not part of a recovery."""


def drill(
    target: ObjectStore,
    app: str,
    kafka: KafkaTopics,
    *,
    primary: Callable[[str], ObjectStore] | None,
    terms: FailoverTerms,
    by: str,
    keep: bool = False,
    remove_topics: Callable[[Removal], None] = lambda _removal: None,
    on_step: Callable[[str], None] = lambda _step: None,
    pause: Callable[[float], None] = runtime.sleep,
) -> DrillResult:
    """Check that an app can be recovered, by recovering a clone of its replica.

    Afterwards the clone is removed, unless `keep` is set. `remove_topics` is a function that removes the clone's
    topics; `pause` is a function that sleeps for a number of seconds while the removal waits. All other parameters are
    those of `recover`. Raises the errors of `recover` if the app could not be recovered.
    """
    name, clock = f"{app}-drill", StepTimer()
    remove_clone = partial(remove_temporary_clone, target, app, name, REASON, remove_topics, partial(pause, 1.0))
    for attempt in range(_ATTEMPTS):
        replica_info = _replica(target, app)
        old = primary(replica_info.root) if primary is not None else None
        on_step(f"looking at {replica_info.root}")
        with clock.step("inspect the app's store"):
            observed = inspect_primary(old, replica_info.root, app, replica_info.created_ms, target.url)
        plan = make_checked_plan(target, app, kafka, observed, terms, clock)
        on_step(f"making {name}")
        ref, clone_terms = f"{app}@{plan.replicated.snapshot}", CloneTerms(topics=plan.topics, owner=by, reason=REASON)
        try:
            start, channels = resolve(target, ref, now_ms=0), cast("KafkaTopics", _AcceptingTopics(kafka))
            remove_clone()
            with clock.step("prepare the run"):
                clone(target, ref, name, at=start, terms=clone_terms, channels=channels, by=by, is_logged=False)
            break
        except NotFound:  # replication has replaced the cut meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
            clock.elapsed.clear()
    try:
        on_step("comparing and verifying")
        with clock.step("compare with the app"):
            tables, why_not = _compare_with_app(old if observed.heads else None, target, plan)
        replica, recovered = _verified(target, app, name, clock)
    finally:
        if not keep:
            with clock.step("remove the clone"):
                remove_clone()
    why_not, took = why_not or observed.unreachable, tuple(clock.elapsed)
    done = DrillResult(app, target.url, plan, name, keep, why_not, tables, replica, recovered, recovered.versions, took)
    record_operation(target, app, "recover --drill", f"{'passed' if done.passed else 'failed'}, as {name}", by)
    return done


def _replica(target: ObjectStore, app: str) -> Replica:
    replica, _ = find_replica(target, app)
    if replica.state != "copy":
        raise Refused(
            f"{app} under {target.url} was recovered: it is no longer a replica, so there is nothing to drill",
            hint=f"replicate it to another root: slackwater replicate {app} --store {target.url} --to ROOT",
        )
    return replica


def _verified(target: ObjectStore, app: str, clone: str, clock: StepTimer) -> tuple[Report, Report]:
    origin = apps.read_app(target, clone).origin
    assert origin is not None  # noqa: S101  it is a clone
    with clock.step("read the replica"):
        replica = verify(target, f"{app}@{origin.snapshot}", now_ms=instants.now_ms(), deep=True, reader=None)
    with clock.step("read the recovered app"):
        return replica, verify(target, clone, now_ms=instants.now_ms(), deep=True, reader=None)


class _AcceptingTopics:
    """Kafka stand-in that accepts every topic. A drill checks offsets before, and its clone never runs."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self.ends, self.commit_positions, self.copy = kafka.ends, kafka.commit_positions, kafka.copy
        self.topic_id = kafka.topic_id

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str, /) -> None:
        """Accept any topic without a check."""


def _compare_with_app(
    store: ObjectStore | None, target: ObjectStore, plan: RecoveryPlan
) -> tuple[tuple[TableCheck, ...], str]:
    checks, why_not = list[TableCheck](), ""
    for stage, manifest in plan.cut.stages.items():
        checksums, key = "not compared", keys.manifest(plan.app, stage, manifest.version)
        try:
            if store is not None:
                checksums = "equal" if store.get(key) == target.get(key) else "different"
        except ObjectNotFound:
            why_not = f"v{manifest.version} of {stage} was garbage-collected there"
        except SlackwaterError as error:
            why_not = error.message
        for name, at in tables_of(manifest, stage).items():
            rows, size = sum(sst.rows for sst in at.ssts), sum(sst.bytes for sst in at.ssts)
            checks.append(TableCheck(name, manifest.version, rows, len(at.ssts), size, checksums))
    return tuple(checks), why_not
