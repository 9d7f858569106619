"""A refused program leaves nothing in the store or in Kafka; errors that need no Spark come before its start."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.operations.attach.tail import Tail
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka, Record
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.claim import Claimer
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.runner import run
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.apps import CloneJournal, begin_clone, ensure_app
from slackwater.store.versions.manifest import AppInfo, Column, Origin, Table

from tests.operations.attach.following import commit, query

pytestmark = pytest.mark.usefixtures("no_spark")

ROWS = StructType([StructField("account", StringType()), StructField("amount", LongType())])
TABLE = Table((Column("account", "string"),), (Column("n", "int64"),), 2, sw.aggregate(n=sw.count()).stored)


def same(rows: DataFrame) -> DataFrame:
    return rows


@dataclass
class Shop:
    """An app of two stages, `entries` and `accounts`, that has not run yet."""

    kafka: Kafka
    store: LocalStore
    name: str

    @property
    def topic(self) -> str:
        return f"events-{self.name}"

    def program(self, *, topic: str = "", partitions_of_topic: int = 2, **accounts: object) -> sw.App:
        """Return the program. Further arguments are those of its second stage."""
        app = sw.App(self.name)
        by_account = sw.repartition("by-account", "account", partitions=partitions_of_topic)
        app.stage(name="entries", reads=sw.topic(topic or self.topic), writes=by_account)(same)
        declared = {
            "reads": by_account,
            "state": sw.aggregate(n=sw.count()),
            "table": sw.table(partitions=2),
        } | accounts
        app.stage(name="accounts", **declared)(same)  # type: ignore[arg-type]
        return app

    def begin(self) -> None:
        """Claim the program's first stage as a first run does, with ten records in its topic."""
        self.kafka.send(self.topic, [Record(str(number).encode(), 0) for number in range(10)], patience_s=180)
        ensure_app(self.store, AppInfo(self.name, 1))
        app = self.program()
        claimer = Claimer(self.store, self.kafka, app, {}, "w", "test", accept_loss=False)
        claimer.create_channels(app.stages_in_order())
        claimer.claim(app.stages["entries"], StageSchemas({}, {"by-account": ROWS}, (), None, None), 1)
        claimer.claim(app.stages["accounts"], StageSchemas({}, {}, ("account",), TABLE, None), 1)

    def left(self) -> tuple[list[str], dict[str, int]]:
        """Return all objects in the store and topics in Kafka."""
        known = self.kafka.partition_counts()
        return [info.key for info in self.store.list("")], {n: known[n] for n in known if self.name in n}

    def refused(self, app: sw.App, error: type[SlackwaterError], said: str, **options: object) -> None:
        """Run the program, and check that it is refused before Spark starts and leaves nothing."""
        before = self.left()
        with pytest.raises(error, match=said) as refused:
            run(app, Options(store=self.store.url, kafka=self.kafka.properties, patience_s=10, **options), Listener())  # type: ignore[arg-type]
        assert len(refused.value.message.splitlines()) == 1
        assert self.left() == before
        assert SparkContext._active_spark_context is None


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    real = request.node.get_closest_marker("kafka") is not None
    kafka = open_kafka(request.getfixturevalue("broker") if real else f"memory://{uuid4().hex}")
    # Where there is no Java, Spark cannot start unnoticed. The broker, which needs one, has started by now.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    made = Shop(kafka, LocalStore(tmp_path / "store"), f"a{uuid4().hex[:8]}")
    made.kafka.create_topics({made.topic: 1})
    return made


CASES: list[tuple[str, Callable[[Shop], sw.App], dict[str, object], type[SlackwaterError], str]] = [
    ("a topic that is not there", lambda shop: shop.program(topic="nowhere"), {}, NotFound, "no Kafka topic named"),
    ("a channel nobody writes", lambda shop: shop.program(reads="by-acount"), {}, SlackwaterError, "by-acount"),
    ("a stage that is not there", Shop.program, {"stages": ("acounts",)}, NotFound, "the nearest: accounts"),
    ("an interval that is none", lambda shop: shop.program(trigger="soon"), {}, Usage, "trigger 'soon'"),
    ("a hot place that contains the store", Shop.program, {"hot": "/"}, Usage, "neither inside the other"),
    (
        "executors elsewhere",
        lambda shop: shop.program(max_unflushed=2),
        {"master": "spark://head:7077"},
        Refused,
        "max_unflushed=2, .* executors of spark://head:7077",
    ),
    (
        "executors elsewhere, by Spark's own setting",
        Shop.program,
        {"max_unflushed": 3, "spark_conf": {"spark.master": "spark://head:7077"}},
        Refused,
        "max_unflushed=3, .* executors of spark://head:7077",
    ),
    (
        "a topic that the broker does not make",
        lambda shop: shop.program(partitions_of_topic=20_000),
        {},
        Refused,
        "refuses to create topic 'a.*-by-account-repartition' with 20,000 partitions: .*",
    ),
    (
        "a topic that no client of a broker makes",
        lambda shop: shop.program(partitions_of_topic=200_000),
        {},
        Refused,
        "refuses to create topic 'a.*-by-account-repartition' with 200,000 partitions: a client can create at most",
    ),
]


@pytest.mark.parametrize(
    ("program", "options", "error", "said"),
    # Only a broker can tell how many partitions are too many.
    [pytest.param(*case[1:], id=case[0], marks=[pytest.mark.kafka] * ("broker" in case[0])) for case in CASES],
)
def test_a_refused_first_run_leaves_no_app_and_no_topic(
    shop: Shop,
    program: Callable[[Shop], sw.App],
    options: dict[str, object],
    error: type[SlackwaterError],
    said: str,
) -> None:
    shop.refused(program(shop), error, said, **options)
    assert shop.left() == ([], {shop.topic: 1})


def test_a_refused_change_needs_no_spark_and_leaves_no_topics_of_new_stages(shop: Shop) -> None:
    shop.begin()
    other = f"other-{shop.name}"
    shop.kafka.create_topics({other: 1})
    for changes, said in (
        ({"key": "branch"}, r"its key columns are \(branch\), but the stored state has \(account\)"),
        ({"state": sw.aggregate(n=sw.count("x"))}, r"state is aggregate\(n=count\(x\)\), but was stored as"),
        (
            {"state": None, "table": None, "writes": sw.repartition("out", "account")},
            "no longer keeps state, but has stored some",
        ),
        ({"topic": other}, f"reads '{other}', but its stored state comes from '{shop.topic}'"),
    ):
        shop.refused(shop.program(**changes), Refused, said)  # type: ignore[arg-type]
        if "topic" not in changes:
            shop.refused(_with_new_output(shop.program(**changes)), Refused, said)  # type: ignore[arg-type]
    app = _with_new_output(shop.program())
    app.stage(name="late", reads=sw.topic("nowhere"), writes=sw.repartition("late", "account"))(same)
    shop.refused(app, NotFound, "no Kafka topic named 'nowhere'")


def _with_new_output(app: sw.App) -> sw.App:
    """Return the program with an additional stage, whose repartition topic is missing."""
    app.stage(name="more", reads="by-account", writes=sw.repartition("more", "account"))(same)
    return app


def test_deleted_offsets_are_reported_without_spark(shop: Shop) -> None:
    shop.begin()
    # The claim is at the beginning of the topic: the records it has not read yet are deleted.
    shop.kafka.delete_records(shop.topic, 7)
    shop.refused(_with_new_output(shop.program()), Refused, rf"{shop.topic}\[0\] 0\.\.7")


def test_an_unfinished_clone_is_refused_without_spark(shop: Shop) -> None:
    origin = Origin("/elsewhere", "shop", "good", {"entries": 3, "accounts": 2}, {})
    begin_clone(shop.store, CloneJournal(AppInfo(shop.name, 1, origin), "/elsewhere", "good"))
    shop.refused(shop.program(), Refused, "is incomplete")


@pytest.mark.parametrize("stage", ["accounts", "totals"])
def test_a_program_cannot_run_on_a_stage_attached_to_a_spark_query(shop: Shop, tmp_path: Path, stage: str) -> None:
    checkpoint, cache = query(), SstCache(tmp_path / "cache", 1 << 30)
    commit(checkpoint, {})
    Tail(shop.store, cache, checkpoint, shop.name, stage, by="host:1").claim()
    shop.refused(shop.program(), Refused, f"{stage} is the state of a query or topic that slackwater is attached to")
