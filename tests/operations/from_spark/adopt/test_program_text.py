"""The program that is generated for a query: it loads, and declares the query's state."""

from pathlib import Path

import pyarrow as pa
import pytest
from slackwater.errors import Refused
from slackwater.operations.from_spark.adopt.program_text import program_text
from slackwater.pipeline.api.stage import Stage
from slackwater.pipeline.run.program import load_app

from tests.operations.attach.memory_checkpoint import MemoryTable

TIME, INT = pa.timestamp("us", "UTC"), pa.int64()
COUNTRY = pa.schema([("country", pa.string())])
SPAN = pa.struct([("start", TIME), ("end", TIME)])
WINDOW = pa.schema([("window", SPAN), ("country", pa.string())])
JOIN = pa.schema([("field0", pa.string()), ("index", INT)])
BUFFER = pa.schema(
    [
        *(("count", INT), ("sum", pa.decimal128(20, 2)), ("isEmpty", pa.bool_()), ("sum_2", pa.float64())),
        *(("count_2", INT), ("min", TIME), ("valueWithExtremumOrdering", pa.int32()), ("extremumOrdering", TIME)),
    ]
)


def declared(folder: Path, *tables: MemoryTable, topics: tuple[str, ...] = ("orders",)) -> Stage:
    """Return the stage of the generated program for a query with these tables."""
    file = folder / "emitted.py"
    file.write_text(program_text(tables, topics, "shop", "by-country", "/checkpoints/totals", "6a1c"))
    app = load_app(str(file))
    assert app.name == "shop"
    stage = app.stages["by-country"]
    assert set(stage.inputs) == set(topics)
    return stage


def test_aggregates_are_declared_in_the_order_of_the_buffer_fields(tmp_path: Path) -> None:
    stage = declared(tmp_path, MemoryTable("", COUNTRY, BUFFER), topics=("orders", "refunds"))
    assert str(stage.state) == (
        "aggregate(count_1=count(), sum_2=sum(of_sum_2), mean_3=mean(of_mean_3), min_4=min(of_min_4), "
        "last_5=last(of_last_5, by=of_last_5_order))"
    )
    assert stage.key == ("country",)
    assert "# last corresponds to max_by" in (tmp_path / "emitted.py").read_text()
    assert "`of_sum_2` decimal(10,2)" in (tmp_path / "emitted.py").read_text()


def test_windows_and_sessions_are_declared_over_a_time_with_a_watermark(tmp_path: Path) -> None:
    stage = declared(tmp_path, MemoryTable("", WINDOW, pa.schema([("count", INT)]), "window"))
    assert stage.key == ("window", "country")
    key = pa.schema([("country", pa.string()), ("sessionStartTime", TIME)])
    values = pa.schema([("session_window", SPAN), ("count", INT)])
    stage = declared(tmp_path, MemoryTable("", key, values, "session"))
    assert stage.key == ("country", "session_window")
    assert stage.event_time.emits == "final"


def test_a_global_aggregate_becomes_a_stage_with_one_numeric_key(tmp_path: Path) -> None:
    row = pa.schema([("row", INT)])
    stage = declared(tmp_path, MemoryTable("", row, pa.schema([("count", INT), ("sum", INT)]), "total"))
    assert (stage.key, str(stage.state)) == (("row",), "aggregate(count_1=count(), sum_2=sum(of_sum_2))")
    text = (tmp_path / "emitted.py").read_text()
    assert ".withColumn('row', F.lit(0).cast(\"long\"))" in text
    assert "`row`" not in text, "no column of the source's"
    declared(tmp_path, MemoryTable("", row, pa.schema([("count", INT)]), "total"))
    assert "from_json" not in (tmp_path / "emitted.py").read_text()


def test_each_other_operator_gets_its_kind_of_state(tmp_path: Path) -> None:
    distinct = declared(tmp_path, MemoryTable("", COUNTRY, pa.schema([]), "distinct"))
    within = MemoryTable("", COUNTRY, pa.schema([("expires_at", TIME)]), "distinct-within-watermark")
    pandas = MemoryTable("", COUNTRY, pa.schema([("n", INT), ("due_at", TIME)]), "pandas")
    others = MemoryTable("", COUNTRY, pa.schema([("n", INT)]), "map-groups")
    side = pa.schema([("av", INT), ("at", TIME), ("matched", pa.bool_())])
    joined = [MemoryTable("", JOIN, side, "join"), MemoryTable("right", JOIN, pa.schema([("bt", TIME)]), "join")]
    tags = [
        *(distinct.state.tag, declared(tmp_path, within).state.tag, declared(tmp_path, pandas).state.tag),
        *(declared(tmp_path, others).state.tag, declared(tmp_path, *joined, topics=("a", "b")).state.tag),
    ]
    assert tags == ["update", "update", "pandas_state", "update", "join"]


def test_an_operator_without_a_declaration_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"buf binary \(of an aggregate over all values"):
        declared(tmp_path, MemoryTable("", COUNTRY, pa.schema([("buf", pa.binary())])))
    window = MemoryTable("window", WINDOW, pa.schema([("count", INT)]), "window")
    with pytest.raises(Refused, match=r"several stateful operators \(distinct"):
        declared(tmp_path, MemoryTable("", COUNTRY, pa.schema([]), "distinct"), window)
    with pytest.raises(Refused, match="a class of transformWithState needs no generated state"):
        declared(tmp_path, MemoryTable("", COUNTRY, pa.schema([("n", INT)]), "transform"))
