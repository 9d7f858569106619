"""A Spark query becomes a stage: compared while the query runs, adopted, and continued at the next record."""

import json
import textwrap
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from slackwater.client import attaching
from slackwater.client.moment import Moment
from slackwater.errors import Refused
from slackwater.operations.from_spark.adopt.adopting import AdoptionRequest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.run.program import load_app

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    app = sw.App("shop")


    @app.stage(
        reads=sw.topic("{topic}"),
        key=("country",),
        state=sw.aggregate(
            orders=sw.count(), cents=sw.sum("cents"), mean=sw.mean("cents"),
            price=sw.sum("price"), most=sw.max("cents"), newest=sw.last("cents", by="id"),
        ),
    )
    def totals(messages: DataFrame) -> DataFrame:
        order = F.from_json(F.col("value").cast("string"), "country string, cents {cents}, price decimal(6,2), id long")
        return messages.select(order.alias("o")).select("o.*").withColumn("cents", {made})
"""


class Query:
    """A plain Spark query over files. Its checkpoint gets the offsets of a topic with the same records."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.topic = f"orders-{uuid4().hex[:8]}"
        self.bootstrap = kafka.bootstrap
        open_kafka(kafka.bootstrap).create_topics({self.topic: 1})
        self.rows: list[dict[str, object]] = []
        self.checkpoint, self._source = folder / "checkpoint", folder / "source"
        self._source.mkdir()
        self._batches = 0

    def send(self, *orders: tuple[str, int]) -> None:
        """Send records to the topic, but not to the query."""
        producer = Producer(open_kafka(self.bootstrap).properties)
        for country, cents in orders:
            row = {"country": country, "cents": cents, "price": f"{cents}.25", "id": len(self.rows)}
            self.rows.append(row)
            producer.produce(self.topic, json.dumps(row).encode())
        assert producer.flush(30) == 0

    def batch(self, *orders: tuple[str, int]) -> None:
        """Write the records of one batch."""
        before = len(self.rows)
        self.send(*orders)
        lines = "\n".join(map(json.dumps, self.rows[before:]))
        (self._source / f"{self._batches:03}.json").write_text(lines)
        self._batches += 1

    def run(self) -> None:
        """Run the query over the available files, one file per batch."""
        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        spark = spark.newSession()
        for name, value in {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
            "RocksDBStateStoreProvider",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        }.items():
            spark.conf.set(name, value)
        schema = "country string, cents int, price decimal(6,2), id long"
        orders = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._source))
        kept = orders.groupBy("country").agg(
            F.count("*"), F.sum("cents"), F.avg("cents"), F.sum("price"), F.max("cents"), F.max_by("cents", "id")
        )
        writer = kept.writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        self._say_kafka()

    def _say_kafka(self) -> None:
        """Replace the checkpoint's offsets by the topic's, in Spark's format."""
        at = 0
        for number in range(self._batches):
            at += len((self._source / f"{number:03}.json").read_text().splitlines())
            file = self.checkpoint / "offsets" / str(number)
            *head, _ = file.read_text().split("\n")
            file.write_text("\n".join([*head, json.dumps({self.topic: {"0": at}})]))
            (file.parent / f".{number}.crc").unlink(missing_ok=True)

    def truth(self, up_to: int) -> dict[str, tuple[int, int]]:
        """Return the number of orders and the cents of each country after this many records."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.rows[:up_to]:
            orders, cents = found.get(str(row["country"]), (0, 0))
            found[str(row["country"])] = orders + 1, cents + int(str(row["cents"]))
        return found


def program(folder: Path, query: Query, made: str = 'F.col("cents")', cents: str = "int") -> Path:
    path = folder / f"shop_{uuid4().hex[:6]}.py"
    path.write_text(textwrap.dedent(PROGRAM).format(topic=query.topic, made=made, cents=cents))
    return path


def totals(moment: Moment) -> dict[object, tuple[object, object]]:
    found = moment.query("SELECT country, orders, cents FROM totals").fetchall()
    return {country: (orders, cents) for country, orders, cents in found}


def files(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


@pytest.fixture
def query(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    return Query(kafka, tmp_path)


def test_a_query_is_compared_adopted_and_continued_at_the_next_record(query: Query, tmp_path: Path) -> None:
    for number in range(4):
        query.batch(("DE", number), ("FR", 10 * number), (f"c{number}", 7))
    query.run()
    before, read = files(query.checkpoint), len(query.rows)
    code = program(tmp_path, query)
    with sw.open(str(tmp_path / "store"), kafka=query.bootstrap) as client:
        # Columns that do not fit are listed before anything is written.
        wrong = program(tmp_path, query, 'F.col("cents").cast("string")')
        wrong.write_text(
            wrong.read_text().replace('sw.sum("cents")', "sw.count()").replace('sw.mean("cents")', "sw.count()")
        )
        with pytest.raises(
            Refused, match=r"'cents' is count\(\): expected count \(count\) at position 2 of the state, found sum int64"
        ):
            client.adopt(query.checkpoint, code=wrong, stage="totals")

        # A shadow comparison reports a planted difference in its batch, and in no other batch.
        faulty = program(tmp_path, query, 'F.when(F.col("id") == 7, 1).otherwise(F.col("cents"))')
        from_first = AdoptionRequest(str(query.checkpoint), str(faulty), "totals", last_batch=0)
        with attaching.open_shadow(client, from_first) as shadow:
            found = {each.batch: each for each in shadow.compare_new_batches()}
            assert shadow.equal_batches == 1
        assert [(each.batch, each.records, each.different is None) for each in found.values()] == [
            (1, 3, True), (2, 3, False), (3, 3, True),
        ]  # fmt: skip
        assert found[2].different is not None
        assert [each.key for each in found[2].different] == [{"country": "FR"}]
        assert client.apps == ()

        plan = client.adopt(query.checkpoint, code=code, stage="totals", dry_run=True)
        assert plan.data["columns"]["_mean_sum"]["of"] == ["sum_2", "count_2"]
        done = client.adopt(query.checkpoint, code=code, stage="totals")
        assert done.data["offsets"] == {query.topic: (read,)}
        app = client.app("shop")
        for batch in range(4):
            moment = app.at(f"v{batch + 1}", stage="totals")
            assert totals(moment) == query.truth(3 * batch + 3)
        assert files(query.checkpoint) == before

        # A batch of the past, and its record, are found on the first day.
        verdict = app.bisect(where="SELECT country FROM totals WHERE cents >= 30", code=code)
        assert verdict.record is not None
        assert verdict.record.hops[0].record.offset == 7

        query.send(("DE", 100), ("IT", 1))
        load_app(str(code)).run(store=client.root, kafka=query.bootstrap, until_caught_up=True)
        assert totals(app.at()) == query.truth(read + 2)
        assert client.adopt(query.checkpoint, code=code, stage="totals").data["already"]
        assert files(query.checkpoint) == before
