"""Declarations of sinks in programs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import slackwater as sw
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.pipeline.api.table_sink import check_table_rows, parse_address
from slackwater.snapshot.cut.kafka_topics import internal_topic


def function(app: str, stage: str, version: int, rows: Any) -> None:
    """Do nothing."""


def declare(writes: Any, *, app: str = "a") -> sw.App:
    made = sw.App(app)
    made.stage(reads=sw.topic("in"), writes=writes, name="s")(lambda raw: raw)
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sw.sink("not a topic"), "topic name 'not a topic' is not usable"),
        (lambda: sw.sink(".."), "Kafka has no such topic"),
        (lambda: sw.sink("t", key=["a", "a"]), "which names a column twice"),
        (lambda: sw.sink("t", value="avro"), "value='avro' needs registry="),
        (lambda: sw.sink("t", registry="http://r:1"), "value='json' has no use for registry="),
        (lambda: sw.sink("t", subject="s"), "subject= is for value='avro'"),
        (lambda: sw.foreach_version(lambda *_: None), None),
        (lambda: sw.foreach_version(function, name="No"), "foreach_version name 'No' is not usable"),
        (lambda: declare([sw.sink("t"), sw.sink("t")]), "writes 't' twice"),
        (lambda: declare([sw.repartition("t", "k"), sw.sink("t")]), "writes 't' twice"),
        (lambda: declare(sw.sink("x" * 249)), "is not usable: expected a topic's name"),
        (lambda: declare([sw.topic("t")]), "expected a slackwater.repartition"),
        (lambda: sw.delta("s3://lake/out", key=["k"], partition_by="p"), None),
        (lambda: sw.delta("", name="out"), "path is ''; expected the table's folder or URL"),
        (lambda: sw.delta("https://me:secret@lake/out"), "path is a URL with a password or a query; expected"),
        (lambda: sw.delta("https://lake/out?sig=secret"), "path is a URL with a password or a query; expected"),
        (lambda: sw.delta("/lake/Orders 3"), "delta() name 'orders 3' is not usable"),
        (lambda: sw.delta("/lake/out", key=["k", "k"]), "sink 'out': key is ('k', 'k'); name each column once"),
        (lambda: sw.iceberg("sales.out"), "table is 'sales.out'; expected CATALOG.NAMESPACE.TABLE"),
        (lambda: sw.iceberg("lake.sales.out", options={"uri": "u"}), None),
        (lambda: declare([sw.delta("/a/out"), sw.delta("/b/out")]), "writes 'out' twice"),
    ],
)
def test_invalid_declarations_of_sinks_are_refused(make: Callable[[], object], said: str | None) -> None:
    if said is None:
        make()
    else:
        with pytest.raises(Usage, match=re.escape(said)):
            make()


def test_a_topic_that_the_app_reads_cannot_be_its_sink() -> None:
    with pytest.raises(Refused, match="app 'a' reads the topic 'in', and its sink publishes there"):
        declare(sw.sink("in"))
    app = declare(sw.sink("out"))
    with pytest.raises(SlackwaterError, match="reads the topic 'out'"):
        app.stage(reads=sw.topic("out"), writes=sw.sink("elsewhere"), name="other")(lambda raw: raw)


def test_a_stage_can_have_channels_and_sinks() -> None:
    app = declare([sw.repartition("c", "k"), sw.sink("t"), sw.foreach_version(function)])
    stage = app.stages["s"]
    assert [one.name for one in stage.writes] == ["c", "t", "function"]
    assert [one.name for one in stage.repartitions] == ["c"]
    assert [(one.name, one.kind) for one in stage.sinks] == [("t", "topic"), ("function", "function")]
    assert internal_topic("a", "s", "t") == "a-s-t-sink"
    # A sink may have the name of another stage's repartition topic: these are different topics.
    app.stage(reads="c", writes=sw.sink("c"), name="reader")(lambda rows: rows)


def test_a_table_sink_has_the_name_of_its_table_and_hides_its_options() -> None:
    sink = sw.iceberg("lake.sales.Big_Orders", options={"token": "secret"})
    assert (sink.name, sink.kind, sink.address) == ("big-orders", "table", "lake.sales.Big_Orders")
    assert "secret" not in repr(sink)
    assert sw.delta("lake/out").address == str(Path("lake/out").absolute())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/lake/alerts/", "/lake/alerts"),
        ("/lake/x/../alerts", "/lake/alerts"),
        ("file:///lake/a%20b/", "/lake/a b"),
        ("lake", str(Path("lake").absolute())),
        ("../lake/", str(Path.cwd().parent / "lake")),
        ("s3://b/x/./y//z/", "s3://b/x/y/z"),
        ("S3A://b/x#1", "s3://b/x#1"),
        ("hdfs://name:8020/x", "hdfs://name:8020/x"),
        ("abfss://files@account.dfs.core.windows.net/x/", "abfss://files@account.dfs.core.windows.net/x"),
    ],
)
def test_one_table_has_one_address(text: str, address: str) -> None:
    assert parse_address("--sink a", "delta", text) == address
    assert parse_address("--sink a", "delta", address) == address


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("delta", ""),
        ("delta", " "),
        ("delta", "s3://"),
        ("delta", "s3://me:SECRET@b/x"),
        ("delta", "s3://me:SE/SECRET@b/x"),
        ("delta", "s3://b/x?key=SECRET"),
        ("delta", "file://lake/alerts"),
        ("iceberg", ""),
        ("iceberg", "sales.out"),
        ("iceberg", "lake..out"),
        ("iceberg", "s3://me:SECRET@b.sales.out"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secret(kind: Any, text: str) -> None:
    with pytest.raises(Usage, match="--sink a is ") as refused:
        parse_address("--sink a", kind, text)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (sw.delta("/lake/out", key=["k", "n"], partition_by="day"), ""),
        (sw.delta("/lake/out", key="other"), "no key column named 'other'"),
        (sw.delta("/lake/out", partition_by="other"), "no partition column named 'other'"),
        (sw.iceberg("lake.sales.out", key="x"), "key column 'x' has the type double; expected"),
        (sw.iceberg("lake.sales.out", key="list"), "key column 'list' has the type list<item: int64>; expected"),
    ],
)
def test_rows_must_fit_into_the_table(sink: Any, said: str) -> None:
    rows = pa.schema(
        {"k": pa.string(), "n": pa.int64(), "x": pa.float64(), "list": pa.list_(pa.int64()), "day": pa.date32()}
    )
    if not said:
        check_table_rows(sink, rows)
        with pytest.raises(Refused, match=r"column 'took' has the type duration.*, which delta"):
            check_table_rows(sink, rows.append(pa.field("took", pa.duration("us"))))
    else:
        with pytest.raises((NotFound, Refused), match=re.escape(said)):
            check_table_rows(sink, rows)


@pytest.mark.parametrize("sink", [sw.delta("/lake/out", partition_by="p"), sw.iceberg("lake.s.out", partition_by="p")])
@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("us"),
        pa.list_(pa.null()),
        pa.struct([("took", pa.duration("us"))]),
        pa.map_(pa.string(), pa.list_(pa.month_day_nano_interval())),
    ],
)
def test_types_that_tables_do_not_have_are_refused_at_any_depth(sink: Any, kind: pa.DataType) -> None:
    with pytest.raises(Refused, match=r"column 'x' has the type .*, which .* tables do not have"):
        check_table_rows(sink, pa.schema({"p": pa.string(), "x": kind}))


@pytest.mark.parametrize(
    ("sink", "columns", "said"),
    [
        (sw.delta("/lake/out", partition_by="p"), {"p": pa.string()}, "all columns are partition columns"),
        (sw.delta("/lake/out", partition_by="p"), {"p": pa.binary(), "n": pa.int64()}, "partition column 'p' has"),
        (
            sw.iceberg("a.b.c", partition_by="p"),
            {"p": pa.list_(pa.int8()), "n": pa.int64()},
            "partition column 'p' has",
        ),
        (sw.delta("/lake/out", key="a`b"), {"a`b": pa.string()}, "key column 'a`b' has a backtick"),
        (sw.iceberg("a.b.c", key="a`b"), {"a`b": pa.string()}, ""),
        (sw.iceberg("a.b.c", partition_by="p"), {"p": pa.binary()}, ""),
    ],
)
def test_columns_must_fit_their_part_in_the_table(sink: Any, columns: dict[str, pa.DataType], said: str) -> None:
    if not said:
        check_table_rows(sink, pa.schema(columns))
    else:
        with pytest.raises(Refused, match=re.escape(said)):
            check_table_rows(sink, pa.schema(columns))
