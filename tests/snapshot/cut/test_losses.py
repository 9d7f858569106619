"""Records deleted from a repartition topic before they were read: one claim skips them, and all counts include them.

All code here is the product's, except that a list replaces Kafka.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption, Gone, Refused
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.run.start_positions import StartFinder, StartPosition, with_start_positions
from slackwater.pipeline.run.supervisor import SnapshotCompleter
from slackwater.pipeline.spark.user_errors import parse_query_error
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import SnapshotRequest, find_snapshot, open_requests, withdraw_request
from slackwater.snapshot.gc.reachable import AppState, Retention, StageState, find_reachable
from slackwater.snapshot.query import log
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.state.records import TopicState
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.manifest import Manifest

from tests.chandy_lamport.test_laws import TIMES
from tests.support.diamonds import APP, SENDER, STAGES, Diamond
from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.manifests import claim


def proved(diamond: Diamond, ref: str = APP, *, deep: bool = True) -> Report:
    found = verify(diamond.store, ref, now_ms=10**15, deep=deep, reader=diamond.logs)
    assert found.differences == ()
    assert all(entry.difference in (0, None) for entry in found.ledger)
    return found


def complete(diamond: Diamond) -> None:
    """Complete snapshots, as the runner does while batches run."""
    completer = SnapshotCompleter(diamond.store, APP, diamond.logs, "test:1")
    completer._complete(open_requests(diamond.store, APP))
    completer.close()


def failures(diamond: Diamond) -> list[str]:
    done = audit_log.list_operations(diamond.store, APP)
    return [each.detail for each in done if each.verb == "snapshot failed"]


def versions(diamond: Diamond, stage: str) -> list[Manifest]:
    return list(history.iter_after(diamond.store, APP, stage, 0))


def check_nothing_went_back_or_came_twice(diamond: Diamond) -> None:
    for stage in STAGES:
        for earlier, later in pairwise(versions(diamond, stage)):
            for name, read in later.inputs.items():
                before = earlier.inputs[name]
                assert all(old <= new for old, new in zip(before.offsets, read.offsets, strict=True)), (later, earlier)
                assert read.version >= before.version
        if stage not in diamond.heads:
            continue
        seen = diamond.seen[stage, diamond.heads[stage].version]
        assert len(set(seen)) == len(seen)
        for name, read in diamond.heads[stage].inputs.items():
            if read.upstream:
                sent = (
                    history.read(diamond.store, APP, read.upstream, read.version).outputs[name].sent
                    if read.version
                    else ()
                )
                assert read.rows_passed == (sent or read.rows_passed)
                claims = [each.lost[name] for each in versions(diamond, stage) if name in each.lost]
                assert sum(read.lost) == sum(sum(lost.rows) for lost in claims)


def settle(diamond: Diamond, max_records: int | None = None) -> None:
    for _ in range(300):
        before = dict(diamond.heads)
        for stage in diamond.heads:
            diamond.step(stage, records=0, max_records=max_records)
        if before == diamond.heads:
            return
    raise AssertionError("it does not come to rest")


INSIDE = ("versions", "an open marker", "a forgotten marker", "a finished marker")
# No snapshot finishes without the reader, once it exists.
CASES = [("old", inside) for inside in INSIDE[:3]] + [("new", inside) for inside in INSIDE]


@pytest.mark.parametrize("max_records", [None, 1])
@pytest.mark.parametrize("partly", [False, True], ids=["at a boundary", "inside a version"])
@pytest.mark.parametrize(("reader", "inside"), CASES)
def test_one_claim_skips_the_whole_gap(reader: str, inside: str, partly: bool, max_records: int | None) -> None:
    diamond = Diamond(STAGES if reader == "old" else STAGES[:3])
    others = [stage for stage in diamond.heads if stage != "joined"]
    if reader == "old":
        diamond.step_all(records=8)
        settle(diamond)

    def run(records: int) -> None:
        for stage in others:
            diamond.step(stage, records=records)

    run(8)
    asked = None
    if inside != "versions":
        asked = request_snapshot(diamond.store, APP, "s", "ada@host")
        for _ in range(2):
            run(0)
        if inside == "a finished marker":
            complete(diamond)
            assert find_snapshot(diamond.store, APP, "s") is not None
        elif inside == "a forgotten marker":
            withdraw_request(diamond.store, APP, asked)
    run(8)
    # A version that is lost in part or whole, or a boundary.
    ends = diamond.logs.ends("even")
    run(8)
    diamond.logs.delete("even", *((diamond.logs.ends("even")[0], ends[1]) if partly else ends))
    run(8)

    with pytest.raises(
        Gone, match=r"gone from Kafka: even\[0\] \d+\.\.\d+, even\[1\] \d+\.\.\d+ \(\d+ rows of evens, v"
    ) as no:
        diamond.start("joined")
    assert "--accept-loss" in no.value.hint
    assert "clone" in no.value.hint
    assert "retention" not in no.value.hint, "the topic is the app's own"
    assert ("joined" in diamond.heads) == (reader == "old"), "nothing was written"

    diamond.start("joined", accept_loss=True)
    claim = diamond.heads["joined"]
    assert claim.lost.keys() == {"even"}
    lost = claim.lost["even"]
    newest = history.read(diamond.store, APP, "evens", lost.up_to)
    assert claim.inputs["even"].offsets == lost.ends == newest.outputs["even"].ends
    assert claim.inputs["even"].lost == lost.rows
    assert newest.outputs["even"].sent == claim.inputs["even"].rows_passed
    assert all(first <= at for first, at in zip(diamond.logs.first("even"), lost.ends, strict=True))
    settle(diamond, max_records)
    diamond.step_all(records=4)
    settle(diamond, max_records)
    # The loss is recorded only once: what follows is read to the end.
    assert [each.version for each in versions(diamond, "joined") if each.lost] == [claim.version]
    check_nothing_went_back_or_came_twice(diamond)
    complete(diamond)
    (books,) = (each for each in proved(diamond).ledger if each.channel == "even")
    assert sum(books.sent) == sum(books.consumed) + sum(books.lost)
    assert books.lost == lost.rows

    # The snapshot whose marker is lost fails by name, and a new request for it succeeds.
    assert open_requests(diamond.store, APP) == ()
    broken = asked is not None and find_snapshot(diamond.store, APP, "s") is None and inside != "a forgotten marker"
    assert [each.startswith("s: stage 'joined' continued without v") for each in failures(diamond)] == [True] * broken
    request_snapshot(diamond.store, APP, "again", "ada@host")
    settle(diamond)
    settle(diamond)
    complete(diamond)
    proved(diamond, f"{APP}@again")
    assert not any(head.recorded.keys() & {asked.id if asked else ""} for head in diamond.heads.values())

    # The loss is in the log, and in the lineage across several versions; the claim itself has read nothing.
    (entry,) = (each for each in log.log_entries(diamond.store, APP, 1000) if each.lost)
    assert (entry.kind, entry.version, entry.rows_in, entry.windows) == ("claim", claim.version, 0, ())
    assert entry.lost["even"] == lost
    if reader == "old":
        before, head = versions(diamond, "joined")[claim.version - 2], diamond.heads["joined"]
        traced = trace(diamond.store, before, head)
        assert {(window.partition, window.start, window.end) for window in traced.lost if window.topic == "even"} == {
            (p, start, end) for p, (start, end) in enumerate(zip(lost.starts, lost.ends, strict=True)) if start < end
        }
        assert not any(
            window.topic == "even" and window.start < lost.ends[window.partition] for window in traced.direct
        )


def test_a_deleted_marker_is_no_loss_and_the_snapshot_completes() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    settle(diamond)
    request_snapshot(diamond.store, APP, "s", "ada@host")
    for stage in ("moves", "evens", "odds"):
        diamond.step(stage, records=0)
    diamond.logs.delete("even", *diamond.logs.ends("even"))
    diamond.start("joined")
    assert not diamond.heads["joined"].lost
    diamond.step_all(records=8)
    settle(diamond)
    complete(diamond)
    assert failures(diamond) == []
    assert find_snapshot(diamond.store, APP, "s") is not None
    proved(diamond, f"{APP}@s")


def test_deleted_messages_of_a_dead_writer_are_no_loss() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    settle(diamond)
    diamond.zombie("evens", "s")
    diamond.logs.delete("even", *diamond.logs.ends("even"))
    diamond.start("joined")
    diamond.step_all(records=8)
    settle(diamond)
    assert not any(each.lost for each in versions(diamond, "joined"))
    proved(diamond)


def test_a_snapshot_that_awaits_a_marker_across_the_gap_fails_and_leaves_nothing() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    settle(diamond)
    asked = request_snapshot(diamond.store, APP, "s", "ada@host")
    for stage in ("moves", "odds", "joined"):
        diamond.step(stage, records=8)
    assert diamond.heads["joined"].awaited == {asked.id: ("even",)}
    # Its marker comes behind the gap: what lies before it would be in flight.
    diamond.step("evens")
    behind = diamond.heads["evens"].outputs["even"].markers[asked.id]
    diamond.logs.delete("even", *(offset for offset in behind))
    diamond.start("joined", accept_loss=True)
    head = diamond.heads["joined"]
    assert not head.recorded.keys() | head.awaited.keys() | head.captured.keys()
    assert open_requests(diamond.store, APP) == ()
    assert [each.split(":")[0] for each in failures(diamond)] == ["s"]
    settle(diamond)
    proved(diamond)


def test_a_snapshot_with_its_marker_after_the_gap_completes_and_counts_the_loss() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    settle(diamond)
    for stage in ("moves", "evens", "odds"):
        diamond.step(stage, records=8)
    diamond.logs.delete("even", *diamond.logs.ends("even"))
    request_snapshot(diamond.store, APP, "s", "ada@host")
    for stage in ("moves", "evens", "odds"):
        diamond.step(stage, records=0)
    diamond.start("joined", accept_loss=True)
    settle(diamond)
    complete(diamond)
    assert failures(diamond) == []
    (books,) = (each for each in proved(diamond, f"{APP}@s").ledger if each.channel == "even")
    assert sum(books.lost) > 0


def test_an_instant_snapshot_across_a_gap_gets_an_applicable_hint() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    for stage in ("moves", "evens", "odds"):
        diamond.step(stage, records=8)
    diamond.logs.delete("even", *diamond.logs.ends("even"))
    cut = resolve(diamond.store, APP, now_ms=10**15)
    with pytest.raises(
        Refused, match=r"in-flight records on 'even' to 'joined' cannot be captured: .* gone from Kafka"
    ) as no:
        pin_cut(diamond.store, cut, "kept", reader=diamond.logs)
    assert "accept-loss" not in no.value.hint + no.value.message
    assert "slackwater run" in no.value.hint
    diamond.start("joined", accept_loss=True)
    pin_cut(diamond.store, resolve(diamond.store, APP, now_ms=10**15), "kept", reader=diamond.logs)
    proved(diamond, f"{APP}@kept")


def test_verify_checks_a_claims_loss_against_the_neighbouring_versions() -> None:
    diamond = Diamond()
    diamond.step_all(records=8)
    for stage in ("moves", "evens", "odds"):
        diamond.step(stage, records=8)
    diamond.logs.delete("even", *diamond.logs.ends("even"))
    diamond.start("joined", accept_loss=True)
    head = diamond.heads["joined"]
    lost, at = head.lost["even"], head.inputs["even"]
    more = tuple(rows + 1 for rows in lost.rows)

    def said(manifest: Manifest) -> str:
        diamond.store.put(keys.manifest(APP, "joined", head.version), codec.encode(manifest))
        found = verify(diamond.store, APP, now_ms=10**15).differences
        diamond.store.put(keys.manifest(APP, "joined", head.version), codec.encode(head))
        return " | ".join(each.message for each in found)

    assert "are lost; expected" in said(replace(head, lost={"even": replace(lost, rows=more)}))
    assert "for no given reason" in said(replace(head, lost={}))
    assert "the lost records are from version" in said(
        replace(head, lost={"even": replace(lost, after=lost.after + 1)})
    )
    assert "the lost records are to offsets" in said(replace(head, lost={"even": replace(lost, ends=lost.starts)}))
    back = replace(at, lost=tuple(rows + 1 for rows in at.lost))
    assert "is at counts" in said(replace(head, inputs=head.inputs | {"even": back}))
    assert "only a claim may do that" in said(replace(head, kind="batch"))


def test_clones_and_gc_take_the_gap_into_account() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    for _ in range(3):
        app.send(*flights(10))
        app.step("legs")
    topic = "flights-by-aircraft-repartition"
    earliest = app.kafka.earliest[topic] = app.kafka.ends(topic) or ()

    def cloned(name: str) -> None:
        clone(app.store, app.name, name, topics={}, channels=app.kafka, by="ada@host")

    def held() -> int:
        """Return the first version of `legs` that gc keeps if the rule is one version per stage."""
        known = {stage: StageState(1, head, head.version + 1) for stage, head in app.heads.items()}
        read = partial(history.read, app.store, app.name)
        return find_reachable(AppState(10**15, known), Retention(versions=1), read).first("legs")

    stood = app.heads["aircraft"].inputs["by-aircraft"]
    with pytest.raises(Refused, match=topic):
        cloned("too-late")
    assert held() == stood.version

    def build(draft: Manifest) -> Manifest:
        finder = StartFinder(
            app.store, app.name, "aircraft", draft, lambda _: TopicState(earliest, earliest), accept_loss=True
        )
        return with_start_positions(
            app.store, draft, {"by-aircraft": finder.start_on_channel("by-aircraft", topic, "legs")}, "test:1"
        )

    app.heads["aircraft"] = claim(
        app.store, app.name, "aircraft", writer="w", by="test:1", now_ms=app.clock.tick("aircraft"), build=build
    )
    passed = app.heads["aircraft"].inputs["by-aircraft"]
    assert (passed.version, sum(passed.lost)) == (app.heads["legs"].version, 30)
    app.step_all()
    assert held() >= passed.version > stood.version
    app.send(*flights(10))
    app.step("legs")
    cloned("staging")
    made = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    for each in (app, made):
        each.run(flights(20))
        report = verify(app.store, each.name, now_ms=10**15, deep=True)
        assert report.differences == ()
        (books,) = (entry for entry in report.ledger if entry.lost)
        assert (books.channel, sum(books.lost), books.difference) == ("by-aircraft", 30, 0)
    assert app.state["carriers"].keys() == made.state["carriers"].keys()
    assert sum(total[0] for total in made.state["aircraft"].values()) == 40 + 10 + 40


def test_a_new_stage_of_a_clone_reports_records_it_will_miss_while_a_new_stage_of_its_source_misses_none() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    clone(app.store, app.name, "staging", topics={}, channels=app.kafka, by="ada@host")

    def entry(name: str, earliest: tuple[int, int] = (0, 0)) -> StartPosition:
        topic = f"{name}-by-aircraft-repartition"
        ends = app.kafka.ends(topic) or ()
        finder = StartFinder(app.store, name, "late", None, lambda _: TopicState(earliest, ends), accept_loss=False)
        return finder.start_on_channel("by-aircraft", topic, "legs")

    whole, cloned = entry("flights"), entry("staging")
    assert (whole.input.version, whole.input.offsets, whole.input.consumed, whole.unseen) == (0, (0, 0), (0, 0), "")
    begins = app.heads["legs"].version
    assert (cloned.input.version, cloned.input.offsets, cloned.input.consumed) == (begins - 1, (0, 0), ())
    assert cloned.unseen == f"rows that legs sent before v{begins}, which are no longer in this app's history"
    with pytest.raises(
        Gone, match=r"would begin without rows that are gone from Kafka: .*\[0\] 0\.\.1 \(\d+ rows? of legs, v1 to v"
    ):
        entry("flights", (1, 0))


def test_a_batch_that_finds_records_deleted_suggests_accept_loss() -> None:
    text = "PySparkRuntimeError: ...\n  slackwater.errors.Gone: offsets 3 to 5 of t[0] are gone from Kafka\n at org"
    error = parse_query_error("late", text)
    assert isinstance(error, Gone)
    assert error.message == "stage 'late': offsets 3 to 5 of t[0] are gone from Kafka"
    assert "--accept-loss" in error.hint


operations_of_an_app = st.one_of(
    st.tuples(
        st.just("step"),
        st.sampled_from(STAGES),
        st.integers(0, 6),
        st.sampled_from([None, None, 1, 4]),
        st.sampled_from([False] * 7 + [True]),
    ),
    st.tuples(
        st.just("delete"), st.sampled_from(sorted(SENDER)), st.lists(st.integers(0, 100), min_size=3, max_size=3)
    ),
    st.sampled_from([("take",), ("complete",), ("zombie",), ("restart", "joined"), ("restart", "odds")]),
)


@settings(max_examples=max(15, round(30 * TIMES)))
@given(st.lists(operations_of_an_app, min_size=20, max_size=70), st.integers(0, 40))
def test_after_any_accepted_deletions_counts_are_right_and_no_snapshot_hangs(
    schedule: Sequence[tuple[object, ...]], late: int
) -> None:
    diamond = Diamond(STAGES[:3] if late else STAGES)
    asked: list[SnapshotRequest] = []

    def again(stage: str) -> None:
        """Restart a stage, and accept the loss if the error asks for that."""
        try:
            diamond.start(stage)
        except Gone:
            diamond.start(stage, accept_loss=True)
            assert diamond.heads[stage].lost
            event("records were lost")

    for number, operation in enumerate(schedule):
        if late and number == late:
            again("joined")
        match operation:
            case ("step", str(stage), int(records), limit, bool(crash)) if stage in diamond.heads:
                try:
                    diamond.step(stage, records=records, max_records=limit, crash=crash)  # type: ignore[arg-type]
                except (Gone, Corruption):
                    again(stage)
            case ("delete", str(channel), [*shares]):
                ends = diamond.logs.ends(channel)
                diamond.logs.delete(channel, *(end * share // 100 for end, share in zip(ends, shares, strict=False)))
            case ("take",) if len(asked) < 3:
                asked.append(request_snapshot(diamond.store, APP, f"s{len(asked)}", "ada@host"))
            case ("complete",):
                complete(diamond)
            case ("zombie",):
                diamond.zombie("evens", asked[-1].id if asked else "s")
            case ("restart", str(stage)) if stage in diamond.heads:
                again(stage)
    for stage in STAGES:
        again(stage)
    settle(diamond)
    complete(diamond)
    assert open_requests(diamond.store, APP) == ()
    failed = {each.split(":")[0] for each in failures(diamond)}
    for one in asked:
        assert (find_snapshot(diamond.store, APP, one.name) is None) == (one.name in failed)
        if one.name not in failed:
            proved(diamond, f"{APP}@{one.name}")
    assert all("gone from Kafka" in each or "continued without" in each for each in failures(diamond)), failures(
        diamond
    )
    check_nothing_went_back_or_came_twice(diamond)
    proved(diamond)
    request_snapshot(diamond.store, APP, "again", "ada@host")
    settle(diamond)
    complete(diamond)
    proved(diamond, f"{APP}@again")
