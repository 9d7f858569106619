"""The program that computes a backfill: what it reads, and that nothing else of the app is run."""

import pyarrow as pa
import slackwater as sw
from pyspark.sql import DataFrame
from slackwater.pipeline.migrate.scratch import scratch_program
from slackwater.snapshot.backfill.channels import Channel
from slackwater.snapshot.backfill.targets import Target
from slackwater.store.versions.manifest import Input

COUNT = pa.schema([("n", pa.int64())])
START = Input("shop-totals-repartition", (0, 0), "totals", 1, consumed=(0, 0))
END = Input("shop-totals-repartition", (5, 4), "totals", 9, consumed=(3, 3))


def test_what_a_stage_with_state_sends_is_read_and_stages_without_are_part_of_it() -> None:
    app = sw.App("shop")

    @app.stage(
        reads=sw.topic("orders"), key="k", writes=sw.repartition("totals", "k"), state=sw.aggregate(n=sw.count())
    )
    def totals(rows: DataFrame) -> DataFrame:
        return rows

    # A channel may have the name of a topic.
    @app.stage(reads=["totals", sw.topic("rates")], writes=sw.repartition("rates", "k"))
    def rated(rows: DataFrame, rates: DataFrame) -> DataFrame:
        return rows.unionByName(rates)

    @app.stage(reads="rates", state=sw.update(lambda _rows, state: state, state=COUNT, emits=COUNT), key="k")
    def kept(rows: DataFrame) -> DataFrame:
        return rows

    channels = {"totals": Channel(START, END)}
    target = Target("shop", "kept", 3, ("n",), (2,), {}, {}, begins=True, at=3, channels=channels, replaces=True)
    made = scratch_program(app, target, {"rates": "rates-elsewhere"}, {}, {"totals": "`k` int, `n` bigint"})
    assert list(made.stages) == ["sent-1", "kept"]
    assert made.writer_of("totals").name == "sent-1"
    kept_alone = made.stages["kept"]
    assert list(kept_alone.inputs) == ["totals", "rates-elsewhere"]
    assert (kept_alone.channels, kept_alone.writes) == (("totals",), ())
    bound = kept_alone.state.bind([], ("k",)) if kept_alone.state is not None else None
    assert bound is not None
    assert [schema.names for schema in bound.emits] == [[]], "it emits nothing"
    assert target.records == 6
