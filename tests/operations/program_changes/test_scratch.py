"""The program that computes a backfill: what it reads, and that nothing else of the app is run."""

import slackwater as sw
from pyspark.sql import DataFrame
from slackwater.operations.program_changes.backfill_targets import BackfillTarget
from slackwater.operations.program_changes.backfill_windows import ChannelRange
from slackwater.operations.program_changes.scratch import scratch_program
from slackwater.store.versions.manifest import Input

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

    @app.stage(reads="rates", writes=sw.repartition("kept", "k"), state=sw.aggregate(n=sw.count(), m=sw.count()))
    def kept(rows: DataFrame) -> DataFrame:
        return rows

    channels = {"totals": ChannelRange(START, END)}
    target = BackfillTarget("shop", "kept", 3, ("m",), (3,), {}, {}, begins=True, channels=channels)
    made = scratch_program(app, target, {"rates": "rates-elsewhere"}, {}, {"totals": "`k` int, `n` bigint"})
    assert list(made.stages) == ["sent-1", "kept"]
    assert made.writer_of("totals").name == "sent-1"
    kept_alone = made.stages["kept"]
    assert list(kept_alone.inputs) == ["totals", "rates-elsewhere"]
    assert (kept_alone.channels, kept_alone.writes) == (("totals",), ())
    assert kept_alone.state is not None
    assert str(kept_alone.state) == "aggregate(m=count())"
    assert target.records == 6
