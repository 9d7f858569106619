"""Recovery: an app continues from its replica, and lacks only data from after the replica's cut."""

from itertools import pairwise

import pytest
from msgspec.structs import replace
from slackwater.errors import Fenced, NotFound, Refused
from slackwater.operations.disaster_recovery.drill import drill
from slackwater.operations.disaster_recovery.fence import Primary, fence_runner
from slackwater.operations.disaster_recovery.recover import RecoveryResult, recover
from slackwater.operations.disaster_recovery.recover_plan import FailoverTerms
from slackwater.operations.disaster_recovery.replicate import Replicator
from slackwater.snapshot.cut import replicas
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.under_way.exclusion import Intent, check_exclusion
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import history, keys
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Manifest, Sink

from tests.operations.disaster_recovery.replicate.test_replicate import LATER_MS, copy, running
from tests.operations.failover import FailoverKafka, failover_kafka
from tests.support.collecting import AgingStore, fresh, keys_of
from tests.support.histories import Flight, FlightsApp, Message, flights, rows_of

SAME = FailoverTerms()


def elsewhere(app: FlightsApp, *, behind: int = 0, before: int = 0) -> FailoverKafka:
    """Return another Kafka with only the users' topic, which has unrelated records first and lacks the last records."""
    made = FailoverKafka()
    made.topics[app.topic] = [
        [*([*messages][:1] * before), *messages[: len(messages) - behind]] for messages in app.kafka.topics[app.topic]
    ]
    return made


def recovered(
    app: FlightsApp, target: ObjectStore, kafka: FailoverKafka, terms: FailoverTerms = SAME, **how: object
) -> RecoveryResult:
    """Recover the app as after the loss of its store."""
    return recover(target, app.name, kafka, primary=None, terms=terms, by="ada@host", **how)  # type: ignore[arg-type]


def goes_on(app: FlightsApp, target: ObjectStore, kafka: FailoverKafka) -> FlightsApp:
    """Return the app at its new store, after it has read all available records."""
    other = FlightsApp(target, kafka, app.name, clock=app.clock)
    for _ in range(2):
        other.step_all()
    return other


def check_books(target: ObjectStore, name: str) -> None:
    report = verify(fresh(target), name, now_ms=LATER_MS, deep=True)
    assert report.consistent, report.differences


def test_a_recovered_app_continues_in_another_kafka_with_its_in_flight_records() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    kafka = elsewhere(app)
    done = recovered(app, target, kafka)
    assert done.plan is not None
    assert sum(state.rows for state in done.plan.in_flight) == 6
    check_books(target, app.name)
    for stage, version in done.versions.items():
        head = history.read(target, app.name, stage, version)
        assert head.kind == "recover"
        assert rows_of(target, head) == rows_of(app.store, app.heads[stage])
    other = goes_on(app, target, kafka)
    app.step_all()
    assert other.state == app.state
    more = flights(11)
    for each in (app, other):
        each.send(*more)
        for _ in range(2):
            each.step_all()
    assert other.state == app.state
    check_books(target, app.name)


def test_a_recovered_app_continues_in_the_same_kafka_after_later_commits_of_the_old_app() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    app.run(flights(20))
    done = recovered(app, target, failover_kafka(app))
    assert done.plan is not None
    assert done.plan.again == {"flights": 20}
    other = goes_on(app, target, failover_kafka(app))
    assert other.state == app.state
    check_books(target, app.name)


def test_a_reachable_old_store_is_fenced_and_nothing_is_lost() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    app.run(flights(20))
    done = recover(
        target,
        app.name,
        failover_kafka(app),
        primary=lambda _root: app.store,
        terms=SAME,
        by="ada@host",
        reader=failover_kafka(app),
    )
    assert done.fenced == ""
    assert done.caught_up is not None
    assert done.plan is not None
    assert done.plan.again == {"flights": 0}
    app.send(*flights(1))
    with pytest.raises(Fenced, match="recover"):
        app.step("legs")
    with pytest.raises(Refused, match="was recovered elsewhere"):
        check_exclusion(app.store, app.name, Intent.RUN)
    check_exclusion(target, app.name, Intent.RUN)
    other = goes_on(app, target, failover_kafka(app))
    assert sum(each[0] for each in other.state["carriers"].values()) == 57


def test_after_recovery_from_one_of_two_replicas_the_other_is_refused() -> None:
    app, one, other = running(), AgingStore(), AgingStore()
    copy(app, one)
    copy(app, other)
    there = {"primary": lambda _root: app.store, "terms": SAME, "by": "ada@host"}
    recover(one, app.name, failover_kafka(app), **there)  # type: ignore[arg-type]
    before = keys_of(other)
    for again in (recover, drill):
        with pytest.raises(Refused, match=f"was already recovered and runs under {one.url}"):
            again(other, app.name, failover_kafka(app), **there)  # type: ignore[operator]
    assert keys_of(other) == before
    # A process that checked just before the other one learns of the other one when the old store is updated.
    seen = Primary(app.store.url, {})
    with pytest.raises(Refused, match="was already recovered"):
        fence_runner(app.store, seen, app.name, other.url, 1, by="ada@host", now_ms=2)


@pytest.mark.parametrize(("verb", "part"), [("put_if_absent", "/leaving.json"), ("put", "/replica.json")])
def test_one_of_two_concurrent_recoveries_to_other_stores_wins_and_the_other_is_refused(verb: str, part: str) -> None:
    app, there, one, other = running(), AgingStore(), AgingStore(), AgingStore()
    copy(app, there)
    recovered(app, there, failover_kafka(app))
    moved = goes_on(app, there, failover_kafka(app))
    for target in (one, other):
        copy(moved, target)
    done: list[AgingStore] = []
    refused: list[str] = []

    def go(target: AgingStore) -> None:
        how = {"terms": SAME, "by": "ada@host"}
        try:
            recover(target, app.name, failover_kafka(app), primary=lambda _root: there, **how)  # type: ignore[arg-type]
            done.append(target)
        except Refused as error:
            refused.append(error.message)

    there.once(verb, part, lambda: go(other))
    go(one)
    (winner,) = done
    assert refused == [
        f"{app.name} of {there.url} was already recovered and runs under {winner.url}: recovering it again would run "
        "it twice"
    ]
    left = replicas.find_replica_state(there, app.name)
    assert left is not None
    assert (left.state, left.root) == ("left", winner.url)


def test_a_repeated_recovery_does_not_count_its_own_fencing_versions_as_lost() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    app.run(flights(20))
    heads = {stage: head.version for stage, head in app.heads.items()}
    how = {"primary": lambda _root: app.store, "terms": SAME, "by": "ada@host", "as_it_is": True}

    def doing(what: str) -> None:
        if what.startswith("copying"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(target, app.name, failover_kafka(app), **how, on_step=doing)  # type: ignore[arg-type]
    fenced = {stage: history.head(fresh(app.store), app.name, stage) for stage in heads}
    assert {stage: head.version - 1 for stage, head in fenced.items() if head is not None} == heads
    done = recover(target, app.name, failover_kafka(app), **how, dry_run=True)  # type: ignore[arg-type]
    assert done.plan is not None
    assert {each.stage: each.newest for each in done.plan.lost} == heads


def test_an_app_can_be_recovered_back_and_forth() -> None:
    app, here, there = running(), AgingStore(), AgingStore()
    moved, stores = app, (app.store, here, there)
    for _ in range(2):
        app.step_all()
    for source, target in pairwise(stores):
        Replicator(source, target, app.name, "ada@host", failover_kafka(app)).run_round()
        recover(
            target,
            app.name,
            failover_kafka(app),
            primary=lambda _root, source=source: source,  # type: ignore[misc]
            terms=SAME,
            by="ada@host",
            reader=failover_kafka(app),
        )
        went_on = goes_on(app, target, failover_kafka(app))
        assert went_on.state == moved.state
        went_on.run(flights(11))
        check_books(target, app.name)
        moved = went_on


def test_a_replica_interrupted_beyond_its_cut_is_rolled_back_to_the_cut() -> None:
    app, target = running(), AgingStore()
    pin_cut(app.store, resolve(app.store, app.name, now_ms=LATER_MS), "friday", by="ada@host", reader=app.kafka)
    copy(app, target)
    cut = replicas.REPLICA_CUTS.newest(target, app.name)
    assert cut is not None
    app.run(flights(20))
    for stage in ("legs", "aircraft"):
        head = app.heads[stage].version
        for version in range(cut.stages[stage] + 1, head + 1):
            key = keys.manifest(app.name, stage, version)
            target.put(key, app.store.get(key))
        for info in app.store.list(keys.ssts(app.name, stage)):
            target.put(info.key, app.store.get(info.key))
    kafka = elsewhere(app)
    recovered(app, target, kafka)
    other = goes_on(app, target, kafka)
    app.step_all()
    assert other.state == app.state
    check_books(target, app.name)


def test_in_a_mirror_with_other_offsets_the_records_already_read_are_found() -> None:
    app, target = running(), AgingStore()
    app.send(*(Flight(f"N{number:03}", f"C{number % 3}", number) for number in range(40)))
    app.step_all()
    copy(app, target)
    kafka = elsewhere(app, before=7)
    with pytest.raises(Refused, match="are not those that the app has read"):
        recovered(app, target, kafka)
    done = recovered(app, target, kafka, FailoverTerms(mirror="primary"))
    assert done.plan is not None
    for _, found in done.plan.inputs.values():
        assert {each.how for each in found} == {"records"}
    other = goes_on(app, target, kafka)
    app.step_all()
    assert other.state == app.state


def test_a_mirror_that_lags_is_read_from_its_end() -> None:
    app, target = running(), AgingStore()
    app.send(*(Flight(f"N{number:03}", f"C{number % 3}", number) for number in range(40)))
    app.step_all()
    copy(app, target)
    kafka = elsewhere(app, behind=3, before=2)
    done = recovered(app, target, kafka, FailoverTerms(mirror="primary"))
    assert done.plan is not None
    ((read, found),) = done.plan.inputs.values()
    assert read.offsets == kafka.ends(app.topic)
    assert all(each.unmirrored for each in found)


def test_without_archived_records_only_exact_offset_pairs_of_the_mirror_are_used() -> None:
    app, target = running(), AgingStore()
    Replicator(app.store, target, app.name, "ada@host").run_round()
    kafka = elsewhere(app, before=2)
    offsets = app.heads["legs"].inputs["flights"].offsets
    kafka.mirrored["primary.flights"] = {p: [(at - 3, at - 1)] for p, at in enumerate(offsets)}
    with pytest.raises(Refused, match="may hold no record"):
        recovered(app, target, kafka, FailoverTerms(mirror="primary"))
    kafka.mirrored["primary.flights"] = {p: [(at - 1, at + 1)] for p, at in enumerate(offsets)}
    with pytest.raises(Refused, match="6 in-flight rows on"):
        recovered(app, target, kafka, FailoverTerms(mirror="primary"))
    app.step_all()
    app.step_all()
    offsets = app.heads["legs"].inputs["flights"].offsets
    Replicator(app.store, target, app.name, "ada@host").run_round()
    kafka = elsewhere(app, before=2)
    kafka.mirrored["primary.flights"] = {p: [(at - 1, at + 1)] for p, at in enumerate(offsets)}
    done = recovered(app, target, kafka, FailoverTerms(mirror="primary"))
    assert done.plan is not None
    ((read, _),) = done.plan.inputs.values()
    assert read.offsets == tuple(at + 2 for at in offsets)


def test_an_unknown_or_incomplete_replica_is_refused_and_a_repeated_recovery_reports_done() -> None:
    app, target = running(), AgingStore()
    with pytest.raises(NotFound, match="no replica named"):
        recovered(app, target, failover_kafka(app))
    replicator = Replicator(app.store, target, app.name, "ada@host", failover_kafka(app))
    replicator.mark_replica("ada@host")
    with pytest.raises(Refused, match="is incomplete"):
        recovered(app, target, failover_kafka(app))
    copy(app, target)
    assert not recovered(app, target, failover_kafka(app)).done
    assert recovered(app, target, failover_kafka(app)).done
    with pytest.raises(Refused, match="it is no longer a replica"):
        copy(app, target)


def test_unpublished_rows_of_a_sink_are_carried_over_to_a_new_internal_topic() -> None:
    app, target = running(), AgingStore()
    kafka, head = failover_kafka(app), app.heads["carriers"]
    begun = replace(successor_of(head), sinks={"alerts": Sink("flights-alerts", 2, head.version + 1)})
    kafka.topics["flights-alerts"] = [[Message((), attempt="older")] * 2]
    app.commit(begun)
    rows = flights(3)
    kafka.topics["flights-alerts"][0] += [Message((row,), app.name, 0, "mine") for row in rows]
    sink = replace(begun.sinks["alerts"], end=5, attempts=("mine",), rows=3, sent=3)
    app.commit(replace(successor_of(begun), sinks={"alerts": sink}))
    copy(app, target)
    other = elsewhere(app)
    done = recovered(app, target, other)
    assert done.plan is not None
    assert done.plan.sink_rows == 3
    now = history.read(target, app.name, "carriers", done.versions["carriers"])
    before = history.read(target, app.name, "carriers", now.version - 1)
    assert (before.kind, before.sinks["alerts"].sent, before.sinks["alerts"].since) == ("recover", 0, before.version)
    assert (now.kind, now.sinks["alerts"].sent, now.sinks["alerts"].since) == ("recover", 3, before.version)
    assert now.sinks["alerts"].topic == "flights-alerts-r1"
    carried = [each for each in other.topics["flights-alerts-r1"][0] if each.attempt in now.sinks["alerts"].attempts]
    assert [row for each in carried for row in each.flights] == rows
    check_books(target, app.name)


def successor_of(head: Manifest) -> Manifest:
    return successor(
        head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=head.time_ms + 1
    )  # fmt: skip
