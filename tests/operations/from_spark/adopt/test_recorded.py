"""Recorded Spark checkpoints of each operator: the generated programs adopt their history."""

import textwrap
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from slackwater.errors import Refused
from slackwater.operations.from_spark.adopt.adoption import Adoption, checksum_rows, checksum_version
from slackwater.operations.from_spark.adopt.mapping import map_tables
from slackwater.operations.from_spark.adopt.program_text import program_text
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.run.program import load_app
from slackwater.state.fits import reconcile_parts
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import AppInfo, Input, Manifest
from slackwater.store.versions.side_tables import part_tables

from tests.operations.from_spark.checkpoint.queries import unpack

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

CLASS = """
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from tests.operations.from_spark.checkpoint.queries import Everything

    app = sw.App("shop")
    kept = sw.processor(Everything(), "k string, n long", time_mode="ProcessingTime", in_pandas=True)


    @app.stage(name="made", reads=sw.topic("orders"), key="k", state=kept)
    def made(messages: DataFrame) -> DataFrame:
        row = F.from_json(F.col("value").cast("string"), "k string, v long, o long")
        return messages.select(row.alias("r")).select("r.*")
"""


def unpacked(name: str, folder: Path) -> str:
    return str(unpack(name, folder))


@pytest.mark.parametrize(
    "name",
    [
        "window-format2",
        *(pytest.param(each, marks=pytest.mark.ci) for each in ("join-format2", "pandas-changelog", "distinct-hdfs")),
        *(pytest.param(each, marks=pytest.mark.ci) for each in ("session-changelog", "total-format2")),
        *(pytest.param(each, marks=pytest.mark.ci) for each in ("distinct-in-time-changelog", "transform-format2")),
    ],
)
def test_the_generated_program_fits_and_each_version_has_what_spark_reads(name: str, tmp_path: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    store, cache, program = (
        MemoryStore(),
        SstCache(tmp_path / "cache", 1 << 30),
        tmp_path / f"{name.partition('-')[0]}_made.py",
    )
    topics = ("orders", "payments") if name.startswith("join") else ("orders",)
    with open_checkpoint(unpacked(name, tmp_path / "checkpoint"), spark) as found:
        if name.startswith("transform"):
            program.write_text(textwrap.dedent(CLASS))
        else:
            program.write_text(program_text(found.tables, topics, "shop", "made", found.location, found.query))
        app = load_app(str(program))
        shape = derive_schemas(app, spark)["made"]
        table = shape.table
        assert table is not None
        rows = partial(map_tables, found.tables, table, "stage shop/made", shape.bound)
        inputs = {topic: Input(topic, ()) for topic in topics}
        sides = reconcile_parts(shape.parts, table, {})
        first = Manifest(
            "shop", "made", 1, 1, "w", 1, "init", inputs=inputs, table=table, by="host:1", side_tables=sides
        )
        adoption = Adoption(
            store, cache, found, first, rows,
            batches=found.readable_batches(), time_rules=shape.time_rules, info=AppInfo("shop", 1),
            constant_offsets=dict.fromkeys(topics, (0,)),
        )  # fmt: skip
        done = adoption.run()
        assert len(adoption.batches) > 3
        assert done.checksum is not None
        assert done.checksum.rows > 0
        for number in history.list_versions(store, "shop", "made"):
            version = history.read(store, "shop", "made", number)
            assert version.adopted is not None
            made = rows()
            states = [found.read_rows(each, version.adopted.next_batch - 1) for each in made.states]
            expected = checksum_rows(made.map_all(states), table)
            for side, parts in made.side_tables.items():
                expected += checksum_rows(made.part_rows(side, all_keys=True), parts)
            assert checksum_version(store, cache, version) == expected
        assert len(part_tables(version)) == (4 if name.startswith("transform") else 0)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("aggregate-hdfs", "MS_0 int64 and others (of approx_count_distinct"),
        ("approximate-format2", "MS_0 int64 and others (of approx_count_distinct"),
        ("collected-hdfs", "buf binary and others (of an aggregate over all values, such as collect_list"),
        ("two-hdfs", "the query has several stateful operators"),
    ],
)
def test_an_operator_that_no_stage_can_continue_is_refused_by_name(name: str, lacks: str, tmp_path: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    with open_checkpoint(unpacked(name, tmp_path / "checkpoint"), spark) as found, pytest.raises(Refused) as caught:
        program_text(found.tables, ["orders"], "shop", "made", found.location, found.query)
    assert lacks.partition(",")[0] in caught.value.message
