"""Several outputs of one stage: different rows from one pass over the input."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import slackwater as sw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.batch.transform import union_tagged
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.spark.plans import share_streams
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import SPLIT, Ledger, eventually

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


class Reads(StreamingQueryListener):
    """For each batch of a query: the number of records that Spark read, and the number between the batch's offsets.

    A query that is stopped after its last batch does not report the batch.
    """

    def __init__(self, query: str) -> None:
        self._query = query
        self.batches: list[tuple[int, int]] = []

    def onQueryStarted(self, event: object) -> None: ...  # noqa: N802  Spark's names

    def onQueryProgress(self, event: object) -> None:  # noqa: N802
        progress = event.progress  # type: ignore[attr-defined]
        if progress.name.endswith(self._query) and progress.numInputRows:
            (source,) = progress.sources
            start, end = (sum(json.loads(each)["offsets"]) for each in (source.startOffset, source.endOffset))
            self.batches.append((progress.numInputRows, end - start))

    def onQueryTerminated(self, event: object) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: object) -> None: ...  # noqa: N802


@pytest.fixture
def reads(spark: SparkSession) -> Iterator[Reads]:
    listener = Reads("/moves")
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


@pytest.mark.kafka
def test_each_output_gets_its_own_rows_and_the_input_is_read_once(
    kafka: EmbeddedKafka, reads: Reads, tmp_path: Path
) -> None:
    split = Ledger(kafka.bootstrap, tmp_path, program=SPLIT)
    store = open_store(split.store)
    split.send(2_000)
    split.catch_up("moves")
    request_snapshot(store, split.app, "between", "test")
    split.send(1_500)
    split.catch_up(max_records=900)
    split.check_tables()
    # The request makes a separate batch before the other records are read.
    snapshot = split.check_snapshot("between")
    assert sum(split.table("earned", f"{split.app}@between")["n"].to_pylist()) < 2_000
    assert not snapshot.channels
    split.verify(split.app)

    # Only the first stage runs, so the rows that it sends are in flight, separately for each receiver.
    split.send(800)
    split.catch_up("moves")
    eventually(lambda: bool(reads.batches), "Spark tells what it has read")
    assert all(read == sent for read, sent in reads.batches), "each record once, not once for each output"
    split.slackwater("snapshot", "take", split.app, "lagging", "--instant")
    split.verify(f"{split.app}@lagging")
    columns = {"debited": {"seq", "account", "amount"}, "credited": {"branch", "paid", "who"}}
    for channel, names in columns.items():
        late = split.slackwater("query", f"{split.app}@lagging", f"FROM inflight('{channel}')", "--json").stdout
        assert names <= {column["name"] for column in json.loads(late)["columns"]}
    head = history.head(store, split.app, "moves")
    assert head is not None
    counts = {name: sum(output.sent) for name, output in head.outputs.items()}
    assert sum(counts.values()) == 4_300
    assert {name: output.schema for name, output in head.outputs.items()} == {
        "debited": "`seq` bigint, `account` string, `amount` bigint",
        "credited": "`branch` int, `paid` struct<amount:bigint,seq:bigint>, `who` array<string>",
    }
    # A failing record fails for both outputs: it is read again to be found, and rejected once.
    split.send(10, raw=(b"no entry",))
    split.catch_up()
    split.check_tables()
    (rejected,) = split.table("moves_rejected").to_pylist()
    assert rejected["value"] == b"no entry"


def test_frames_that_fork_at_different_operators_read_each_stream_once(spark: SparkSession, tmp_path: Path) -> None:
    def stream() -> DataFrame:
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 2)
        return rate.load().selectExpr("value % 100 n", "timestamp at", "map('n', value) m")

    left, right = stream(), stream()
    both = left.unionByName(right).withColumn("twice", F.col("n") * 2)
    even = F.udf(lambda n: n % 2 == 0, "boolean")
    frames = share_streams(
        (
            both.where(even("n")).select("twice"),
            both.where("n < 10").select(F.explode(F.array("n", "twice")).alias("n")),
            right.where("n >= 90").select("n", "m"),
        )
    )
    found: list[list[dict[str, object]]] = []

    def keep(rows: DataFrame, _batch: int) -> None:
        found.append([row.asDict() for row in rows.collect()])

    checkpoint = str(tmp_path / "checkpoint")
    query = union_tagged(frames, ()).writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()
    eventually(lambda: any(done.numInputRows for done in query.recentProgress), "a batch")
    query.stop()
    rows = found[0]
    assert Counter(row["_0_twice"] for row in rows if row["_input"] == 0) == Counter([*range(0, 200, 4)] * 2)
    assert Counter(row["_1_n"] for row in rows if row["_input"] == 1) == Counter([*range(10), *range(0, 20, 2)] * 2)
    assert sorted(row["_2_n"] for row in rows if row["_input"] == 2) == [*range(90, 100)]  # type: ignore[type-var]
    assert {done.numInputRows for done in query.recentProgress} <= {0, 200}


def app_of(returned: object, **declared: object) -> sw.App:
    """Return an app whose stage reads a topic, writes `a` by `key` and `b` by `value`, and returns `returned(...)`."""
    app = sw.App("s")
    writes = (sw.repartition("a", "key"), sw.repartition("b", "value"))
    arguments: dict[str, object] = {"reads": sw.topic("t"), "writes": writes} | declared
    app.stage(name="s", **arguments)(returned)  # type: ignore[arg-type]
    return app


def emitting(*emits: str) -> object:
    return sw.update(lambda rows, state: state, state="n long", emits=emits)


@pytest.mark.parametrize(
    ("returned", "declared", "error", "said"),
    [
        (
            lambda t: (t, t, t),
            {},
            Refused,
            "returned 3 DataFrames; expected one, .* or one for each of these outputs: 'a', 'b'",
        ),
        (lambda t: (t, "b"), {}, Refused, "returned str; expected a DataFrame"),
        (
            lambda t: (t.selectExpr("key", "1 `a.b`", "2 `A.B`"), t),
            {},
            Usage,
            "'a.b' and 'A.B' differ only in case",
        ),
        (lambda t: (t.selectExpr("key", "1 `.b`"), t), {}, Usage, "the first of them no dot"),
        (lambda t: (t.selectExpr("key", "1 `_to_0`"), t), {}, Usage, "'_to_0' is reserved"),
        (
            lambda t: t.selectExpr("key", "value", "offset", "1 `Offset`"),
            {"state": sw.upsert(by="offset"), "key": "key"},
            Usage,
            "'offset' and 'Offset' differ only in case",
        ),
        (lambda t: {"a": t, "b": t}, {}, Refused, "returned dict; expected a DataFrame"),
        (lambda t: (t, t.select("key")), {}, NotFound, "no key column named 'value'"),
        (lambda t: (t.union(t), t), {}, Refused, "uses its stream 2 times"),
        (lambda t, u: (t, t), {"reads": (sw.topic("t"), sw.topic("u"))}, Refused, "reads 'u', but does not use it"),
        (lambda t: (t, t), {"writes": sw.repartition("a", "key")}, Refused, "returned 2 DataFrames; expected one$"),
        (
            lambda t: (t, t),
            {"state": sw.upsert(by="offset"), "key": "key"},
            Refused,
            "returned 2 DataFrames; expected one, or one for each of its 1 inputs",
        ),
        (
            lambda t: t,
            {"state": emitting("key binary", "value binary", "key binary"), "key": "key"},
            Refused,
            "its state emits rows for 3 outputs, but writes= has 2",
        ),
        (
            lambda t: t,
            {"state": emitting("key binary", "key binary"), "key": "key"},
            NotFound,
            "no key column named 'value'",
        ),
    ],
)
def test_rows_that_fit_no_output_are_refused(
    spark: SparkSession, returned: object, declared: dict[str, object], error: type[SlackwaterError], said: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        derive_schemas(app_of(returned, **declared), spark)
    assert len(refused.value.message.splitlines()) == 1


def test_each_output_has_its_own_columns_and_a_single_frame_goes_to_all(spark: SparkSession) -> None:
    (shape,) = derive_schemas(app_of(lambda t: (t.select("key", "offset"), t.select("value"))), spark).values()
    assert {name: rows.names for name, rows in shape.emits.items()} == {"a": ["key", "offset"], "b": ["value"]}
    assert [rows.names for rows in shape.output_schemas] == [["key", "offset"], ["value"]]
    (shape,) = derive_schemas(app_of(lambda t: t.select("key", "value")), spark).values()
    assert {name: rows.names for name, rows in shape.emits.items()} == {"a": ["key", "value"], "b": ["key", "value"]}
    assert shape.output_schemas == ()
    state = {"state": emitting("key binary, n long", "value binary"), "key": "key"}
    (shape,) = derive_schemas(app_of(lambda t: t, **state), spark).values()
    assert {name: rows.names for name, rows in shape.emits.items()} == {"a": ["key", "n"], "b": ["value"]}
