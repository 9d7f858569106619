"""What a user's function keeps is after a backfill what it makes of all records, whatever was committed meanwhile."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Refused
from slackwater.pipeline.batch.head import Outdated
from slackwater.pipeline.kafka import records as kafka_records
from slackwater.pipeline.kafka import topics
from slackwater.pipeline.migrate.backfilled import Filled
from slackwater.pipeline.migrate.reach import reach
from slackwater.snapshot.backfill.announced import announces
from slackwater.snapshot.backfill.scratch import sweep
from slackwater.snapshot.backfill.targets import Left, Target, at_head, backfillable
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.migrate.declared import Declared, DeclaredStage
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Backfill, Manifest

from tests.pipeline.migrate.past import NAMES, UPDATES, App, records, table_of

STEPS = st.lists(st.sampled_from(["batch", "begin", "land", "compact", "compute", "announce", "swap"]), max_size=14)


def submit(app: App, size: int) -> None:
    """As a runner does it: what was overtaken is computed again."""
    change = app.under_way.pop() if app.under_way else app.begin(size)
    try:
        app.committer.submit(change)
    except Outdated:
        app.committer.submit(app.begin(change.manifest.inputs["t"].rows))


def compute(app: App, target: Target, batches: list[int]) -> tuple[Manifest, Backfill]:
    """The values as of the newest version, and that."""
    head = app.head
    return head, app.compute(at_head(app.store, target, head), batches)


@settings(max_examples=settings.default.max_examples // 4)
@given(
    seed=st.integers(0, 1 << 16),
    before=st.lists(st.integers(0, 9), max_size=4),
    again=st.lists(st.integers(1, 9), max_size=3),
    steps=STEPS,
    sizes=st.lists(st.integers(0, 6), min_size=14, max_size=14),
)
def test_a_backfilled_table_is_what_the_function_makes_of_all_records(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    before: list[int],
    again: list[int],
    steps: list[str],
    sizes: list[int],
) -> None:
    app = App(tmp_path_factory.mktemp("sst"), records(150, seed), *UPDATES)
    for size in before:
        app.batch(size)
    target, swapping = app.migrate(), app.swapping()
    assert target.replaces
    computed = compute(app, target, again)
    for step, size in zip(steps, sizes, strict=False):
        if step == "compute":
            computed = compute(app, target, again)
        elif step == "announce":
            swapping.announce()
        elif step == "swap":
            with suppress(CommitConflict):
                swapping.onto(*computed)
        elif step == "compact":
            app.compact()
        elif step == "begin" and not app.under_way:
            app.under_way.append(app.begin(size))
        elif step in ("land", "batch"):
            submit(app, size)
    if not app.head.backfills:
        swapping.onto(*compute(app, target, again))
    submit(app, 5)
    (read,) = app.head.inputs["t"].offsets
    assert app.rows() == app.expected(read)
    found = list(history.after(app.store, *NAMES, 0))
    assert sum(each.kind == "backfill" and not announces(each) for each in found) == 1
    for earlier, later in pairwise(found):
        assert len(earlier.backfills) <= len(later.backfills)
        if later.backfills:
            assert app.rows(later) == app.expected(later.inputs["t"].offsets[0])


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(tmp_path, records(100, 7), *UPDATES)
    app.batch(20)
    return app


def test_values_of_a_version_that_is_not_the_newest_any_more_are_not_brought_in(app: App) -> None:
    target, swapping = app.migrate(), app.swapping()
    computed = compute(app, target, [])
    app.batch(5)
    before = app.head
    with pytest.raises(CommitConflict):
        swapping.onto(*computed)
    assert app.head == before
    objects = {sst.object for sst in before.ssts}
    done = swapping.onto(*compute(app, target, []))
    assert app.rows() == app.expected(25)
    assert done.ssts == len(objects), "none was filled twice"
    assert tuple(sweep(app.store, app.head, 1)) == (), "no batch needs what computed it"


def test_killed_at_any_request_the_table_is_as_before_or_as_after_and_the_same_goes_on(tmp_path: Path) -> None:
    """From the word that values are to come to the last of removing what computed them."""

    def whole(app: App, target: Target) -> None:
        if not app.head.backfills:
            swapping = app.swapping()
            head = swapping.announce()
            swapping.onto(head, app.compute(at_head(app.store, target, head), [4]))
        assert tuple(sweep(app.store, app.head, 1)) == ()

    killed = [0]
    for requests in count():
        app = App(tmp_path / str(requests), records(40, 3), *UPDATES)
        app.batch(8)
        target = app.migrate()
        app.batch(4)
        before, expected = app.rows(), app.expected(12)
        ended = app.survives(requests, partial(whole, app, target))
        assert app.rows() == (expected if app.head.backfills else before)
        if ended:
            break
        killed.append(len(app.head.backfills))
        submit(app, 3)
        whole(app, target)
        assert app.rows() == app.expected(15)
        assert len(app.head.backfills) == 1
        assert [info.key for info in app.store.list("") if not info.key.startswith("app/")] == []
    assert killed.count(0) > 10
    assert killed.count(1) > 5, "also after the commit"


def test_a_batch_under_way_waits_for_values_that_are_announced(app: App) -> None:
    target, swapping = app.migrate(), app.swapping()
    app.patience_s = 30
    app.claim(NAMES[0])
    runner = app.committer.head.writer
    late = app.begin(5)
    announced = swapping.announce()
    assert announces(announced)
    with ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(app.committer.submit, late)
        # Its number is taken, and so it stays until the values are there.
        head, backfill = announced, app.compute(at_head(app.store, target, announced), [])
        swapping.onto(head, backfill)
        assert isinstance(submitted.exception(30), Outdated)
    app.batch(5)
    assert app.rows() == app.expected(25)
    assert (app.head.writer, app.head.by) == (runner, "host:1"), "as its runner's"


def test_values_that_do_not_come_are_waited_for_once(app: App) -> None:
    app.migrate()
    late = app.begin(5)
    announced = app.swapping().announce()
    app.committer.submit(late)
    assert app.head.version == announced.version + 1
    assert app.head.inputs["t"].offsets == (25,)
    app.swapping().announce()
    app.patience_s = 30
    app.claim(NAMES[0])
    app.batch(5)
    assert app.head.kind == "batch", "a runner that comes later asks for nothing"


def test_versions_that_wait_to_be_committed_end_the_runner_and_are_read_again(tmp_path: Path) -> None:
    app = App(tmp_path, records(100, 7), *UPDATES)
    app.batch(20)
    target = app.migrate()
    app.max_unflushed = 3
    app.claim(NAMES[0])
    failed = []
    late = app.begin(5)
    app.swapping().onto(*compute(app, target, []))
    app.committer._failed = failed.append
    app.committer.submit(late)
    assert not app.committer.drain(10)
    assert "was backfilled while" in str(failed[0])
    with pytest.raises(Refused, match="of rows as they were before"):
        app.committer.submit(late)
    app.committer.close()
    app.claim(NAMES[0])
    app.batch(5)
    assert app.committer.drain(10)
    assert app.rows() == app.expected(25)


def test_columns_of_several_migrations_are_computed_together(app: App) -> None:
    """Each may go into the others: of some of them alone, later batches would make something else."""
    target = app.migrate()
    app.batch(5)
    head = app.head
    assert head.table is not None
    values = tuple(
        replace(each, since=head.version if each.name == "told" else each.since) for each in head.table.values
    )
    head = replace(head, table=replace(head.table, values=values))
    declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, head.table)})
    (found,) = backfillable(app.store, {"stage": head}, declared).targets
    assert (found.since, found.columns, found.at) == (head.version, ("squares", "told"), head.version)
    assert (found.ids, found.ends) == (target.ids, {"t": (25,)})


def test_nothing_is_brought_in_after_another_migration(app: App) -> None:
    target = app.migrate()
    app.migrate()
    with pytest.raises(Refused, match="was migrated while the past of stage was computed") as refused:
        at_head(app.store, target, app.head)
    assert "with the program that it was migrated to" in refused.value.hint


def test_values_of_fewer_records_than_those_that_rows_have_do_not_take_their_place(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment after the migration, and what Kafka has when it has forgotten more than the old program had read."""
    app.migrate()
    app.batch(30)
    declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, table_of(app.state))})
    late = resolve(app.store, "app", now_ms=2)
    app.batch(10)
    heads = {"stage": app.head}
    (left,) = backfillable(app.store, heads, declared, since=late).left
    assert "is later than the migration" in left.why
    early = resolve(app.store, "app/stage@v2", now_ms=2)
    assert backfillable(app.store, heads, declared, since=early).left == ()
    (target,) = backfillable(app.store, heads, declared).targets
    assert target.counted == {"t": (20,)}

    def has(earliest: int, target: Target = target) -> Filled | Left:
        monkeypatch.setattr(topics, "offsets", lambda _kafka, _name: ((earliest,), (60,)))
        monkeypatch.setattr(kafka_records, "read_range", lambda *_asked, **_how: iter(()))
        return reach({}, app.store, target, {}, patience_s=1)

    every, fewer, most = has(0), has(20), has(21)
    assert isinstance(every, Filled)
    assert every.whole
    assert isinstance(fewer, Filled)
    assert (fewer.whole, fewer.starts) == (False, {"t": (20,)})
    assert isinstance(most, Left)
    assert "values of fewer records than those that they have" in most.why
    unknown = dataclasses.replace(target, counted=None)
    assert isinstance(has(0, unknown), Filled)
    unsure = has(20, unknown)
    assert isinstance(unsure, Left)
    assert "nobody knows any more what it had read by v3" in unsure.why
