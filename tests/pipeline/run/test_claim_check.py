"""Refusals and messages for a changed program, before Kafka is contacted."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
import slackwater as sw
from msgspec import structs
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from slackwater.errors import Refused, Usage
from slackwater.operations.exchange.first_version import check_accepts_rows
from slackwater.pipeline.api.table import TableOptions
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.run.claim import (
    Claimer,
    check_declared,
    reconcile_table,
    with_default_compaction,
    with_tasks,
)
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.processor import Processor
from slackwater.state.kinds.session import Sessions
from slackwater.state.kinds.state_variables import Variable
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import Column, EventTime, Input, Manifest, Policy, Table

from tests.support.stages import Stage


def same(rows: DataFrame) -> DataFrame:
    return rows


def claimer(app: sw.App, store: MemoryStore) -> Claimer:
    return Claimer(store, {}, app, {}, "w", "test", accept_loss=False)


def test_a_channel_that_became_a_topic_is_not_taken_for_a_renamed_stage() -> None:
    store = MemoryStore()
    at = {"by-n": Input("app-by-n-repartition", (0,), "legs", consumed=(0,))}
    commit(store, Manifest("app", "counts", 1, 1, "w", 1, "claim", at))

    topic = sw.App("app")
    topic.stage(reads=sw.topic("by-n"), writes=sw.repartition("on", "n"), name="counts")(same)
    with pytest.raises(Refused, match=r"'by-n' is now a topic from outside the app; .* by its stage 'legs'") as refused:
        claimer(topic, store).check_stage(topic.stages["counts"])
    assert "--rename-stage" not in refused.value.hint

    commit(store, Manifest("app", "totals", 1, 1, "w", 1, "claim", {"by-n": Input("by-n", (7,))}))
    channel = sw.App("app")
    channel.stage(reads=sw.topic("t"), writes=sw.repartition("by-n", "n"), name="legs")(same)
    channel.stage(reads="by-n", writes=sw.repartition("on", "n"), name="totals")(same)
    with pytest.raises(Refused, match=r"'by-n' is now written by its stage 'legs'; it was a topic from outside the"):
        claimer(channel, store).check_stage(channel.stages["totals"])

    renamed = sw.App("app")
    renamed.stage(reads=sw.topic("t"), writes=sw.repartition("by-n", "n"), name="hops")(same)
    renamed.stage(reads="by-n", writes=sw.repartition("on", "n"), name="counts")(same)
    with pytest.raises(Refused, match="is now written by 'hops'; it was written by 'legs'") as refused:
        claimer(renamed, store).check_stage(renamed.stages["counts"])
    assert "--rename-stage legs=hops" in refused.value.hint


def test_a_table_of_sessions_only_fits_the_key_column_with_the_sessions() -> None:
    session = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    state = FinalKind(sw.aggregate(n=sw.count()))
    kept = Sessions(state, "visit")
    bound = kept.bind([pa.schema([("user", pa.string()), ("visit", session)])], ("visit", "user"))
    values = tuple(Column(field.name, from_arrow(field.type)) for field in bound.values)
    stored = Table((Column("user", "string"),), values, 2, kept.stored)
    head = Manifest("app", "stage", 1, 1, "w", 1, "claim", {}, table=stored)
    app, once = sw.App("app"), sw.event_time(emits="final")

    def agreed_on(name: str, key: list[str], declared: Table) -> Table | None:
        over = sw.repartition(name, "user")
        app.stage(reads=sw.topic("t"), writes=over, key=key, state=state.state, event_time=once, name=name)(same)
        return reconcile_table(app, app.stages[name], declared, head)

    compacted = structs.replace(stored, partitions=5, compaction=sw.leveled())
    assert agreed_on("a", ["visit", "user"], compacted) == structs.replace(compacted, partitions=2)
    windows = structs.replace(
        stored, state=state.stored, key=(Column("visit", from_arrow(session)), *stored.key), values=values[1:]
    )
    for name, key, said, way in (
        ("b", ["visit", "user"], "state is", "give the changed stage a new name"),
        ("c", ["user"], "state is", "give the changed stage a new name"),
        ("d", ["hour", "user"], r"are \(hour, user\), but the stored state has \(user, visit\)", "only names changed"),
    ):
        with pytest.raises(Refused, match=said) as refused:
            agreed_on(name, key, windows)
        assert way in refused.value.hint


def test_batches_have_two_tasks_per_core_but_at_most_one_per_state_partition() -> None:
    declared = Table((Column("key", "string"),), (), 512)

    def ranges(tasks: int | None, cores: int, partitions: int = 512) -> int:
        table = with_tasks(structs.replace(declared, partitions=partitions), tasks, cores)
        assert table is not None
        return table.ranges

    assert [ranges(None, cores) for cores in (0, 1, 2, 3, 16, 1000)] == [512, 2, 4, 8, 32, 512]
    assert [ranges(tasks, 2) for tasks in (1, 3, 600)] == [1, 3, 512]
    # With a rescale, the number of tasks stays that of the program.
    table = with_tasks(declared, None, 2)
    assert table is not None
    assert structs.replace(table, partitions=3).ranges == 3
    assert ranges(None, 2, 4) == 4
    assert with_tasks(None, None, 2) is None


@pytest.mark.parametrize(
    ("options", "cores", "runs"),
    [
        (sw.table(), 4, 8),
        (sw.table(), 8, 16),
        (sw.table(tasks=15), 8, 8),
        (sw.table(tasks=16), 2, 16),
        (sw.table(compaction=sw.universal()), 8, 8),
        (sw.table(compaction=sw.leveled(l0_trigger=3)), 8, 3),
    ],
)
def test_tables_of_many_tasks_are_merged_less_often_by_default(options: TableOptions, cores: int, runs: int) -> None:
    declared = Table((Column("key", "string"),), (), 512, compaction=options.compaction or Policy())
    table = with_default_compaction(with_tasks(declared, options.tasks, cores), options)
    assert table is not None
    assert table.compaction.l0_trigger == runs
    assert with_default_compaction(None, options) is None


@pytest.mark.parametrize("tasks", [0, -1, 4097, 2.5, True, "4"])
def test_a_number_of_tasks_out_of_range_is_refused(tasks: object) -> None:
    table = sw.table(tasks=tasks)  # type: ignore[arg-type]
    declare = sw.App("a").stage(reads=sw.topic("t"), key="k", state=sw.upsert(by="v"), name="s", table=table)
    with pytest.raises(Usage) as refused:
        declare(lambda rows: rows)
    expected = f"stage 's': tasks of its table is {tasks!r}; expected a whole number, 1 to 4096"
    assert str(refused.value).startswith(expected)
    assert refused.value.hint == "leave it out for two tasks per core of the Spark session, or write tasks=4096 at most"


class Count(StatefulProcessor):
    """A StatefulProcessor that declares its state as DDL, which only Spark can parse."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: object, rows: object, timerValues: object) -> Iterator[Row]:  # noqa: N802, N803
        yield from ()

    def close(self) -> None: ...


@pytest.mark.usefixtures("no_spark")
def test_a_processor_that_ran_before_starts_without_spark_until_its_columns_are_needed() -> None:
    kind = Processor("None", {"count": Variable("value")})
    stored = Table((Column("user", "string"),), (Column("count", "struct<n: int64>"),), 2, kind.stored)
    store, ends = MemoryStore(), {"t": Input("t", (7,))}
    commit(store, Manifest("app", "counts", 1, 1, "w", 1, "claim", ends, table=stored))

    def program(time_mode: str) -> sw.App:
        app = sw.App("app")
        state = sw.processor(Count(), "user string, n long", time_mode=time_mode)
        app.stage(reads=sw.topic("t"), key="user", state=state, name="counts")(same)
        return app

    check_declared((app := program("None")), app.stages["counts"], stored, with_spark=False)
    other = program("EventTime")
    with pytest.raises(Refused, match=r"state is processor\(time_mode=EventTime\), but was stored as processor\(time"):
        claimer(other, store).check_stage(other.stages["counts"])


def test_rows_cannot_be_imported_into_a_table_with_waiting_rows_or_open_sessions() -> None:
    for kind, what in (
        (sw.join("a", "b", within="1 hour"), "rows that wait for a join"),
        (Sessions(FinalKind(sw.aggregate(n=sw.count())), "visit"), "sessions that are open"),
    ):
        with pytest.raises(Refused, match=f"its table holds {what}") as refused:
            check_accepts_rows("shop/till", kind)
        assert "starting_timestamp" in refused.value.hint
    check_accepts_rows("shop/till", sw.aggregate(n=sw.count()))


@pytest.mark.parametrize(
    ("late_by", "event_time", "told"),
    [(("hour",), None, True), ((), None, False), (("hour",), EventTime(5), False)],
    ids=["closes now", "closes none", "closed some"],
)
def test_a_stage_that_starts_to_close_windows_over_existing_rows_says_so(
    late_by: tuple[str, ...], event_time: EventTime | None, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stored = Stage()
    head = structs.replace(stored.put({(1,): (2, "x")}), event_time=event_time)
    app = sw.App("app")
    app.stage(reads=sw.topic("t"), key=["k"], state=sw.aggregate(n=sw.count()), name="stage")(same)
    shape = StageSchemas({}, {}, ("k",), head.table, None, lateness_columns=late_by)
    claimer(app, stored.store).check_shape(app.stages["stage"], shape, head, {})
    assert ("stage app/stage uses event time from now on" in caplog.text) == told
