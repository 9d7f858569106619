"""Batches that an adoption imports, and the offsets at which the stage continues."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest
import slackwater as sw
from slackwater.errors import Refused
from slackwater.operations.attach.protocol import ReadableBatch
from slackwater.operations.from_spark.adopt.adopting import AdoptionRequest, batches_to_adopt, first_offset_options
from slackwater.pipeline.api.stage import Stage

from tests.operations.attach.memory_checkpoint import MemoryCheckpoint, MemoryTable

COUNTRY = MemoryTable("", pa.schema([("country", pa.string())]), pa.schema([("count", pa.int64())]))


@dataclass(slots=True)
class DamagedCheckpoint(MemoryCheckpoint):
    """A checkpoint in which the state of some batches is unreadable."""

    damaged: frozenset[int] = frozenset()

    def readable_batches(self, up_to: int | None = None, /) -> range:
        there = MemoryCheckpoint.readable_batches(self, up_to)
        return range(0) if there and there[-1] in self.damaged else there


def checkpoint(*damaged: int) -> DamagedCheckpoint:
    made = DamagedCheckpoint((COUNTRY,), damaged=frozenset(damaged))
    for number in range(5):
        made.commit({}, {"orders": (number,)}, 1_000 * (number + 1))
    return made


def stage(*reads: object) -> Stage:
    app = sw.App("shop")
    counted = sw.aggregate(n=sw.count())
    app.stage(reads=reads, key="country", state=counted, name="totals")(lambda *rows: rows[0])
    return app.stages["totals"]


def where(offsets: Mapping[str, tuple[int, ...]], *said: str, of: Stage | None = None) -> list[str]:
    query = AdoptionRequest("/checkpoints/totals", "shop.py", "totals", offsets=said)
    return first_offset_options(of or stage(sw.topic("orders")), ReadableBatch(7, offsets, None, None, 1), query)


def test_all_readable_batches_up_to_the_given_one_become_versions() -> None:
    found = checkpoint()
    found.clean_up(before=1)
    assert batches_to_adopt(found, None) == range(1, 5)
    assert batches_to_adopt(found, 3) == range(1, 4)


def test_if_the_newest_state_is_damaged_the_newest_readable_batch_is_named() -> None:
    with pytest.raises(Refused, match=r"at batch 4 from memory:checkpoint; the newest readable batch is 2") as no:
        batches_to_adopt(checkpoint(4, 3), None)
    assert no.value.hint == "adopt that batch: --from-batch 2"
    assert batches_to_adopt(checkpoint(4, 3), 2) == range(3)
    with pytest.raises(Refused, match="no earlier batch is readable"):
        batches_to_adopt(checkpoint(*range(5)), None)
    with pytest.raises(Refused, match="has not committed a batch yet"):
        batches_to_adopt(MemoryCheckpoint((COUNTRY,)), None)


def test_a_stage_continues_at_the_querys_offsets() -> None:
    assert where({"orders": (7, 9)}) == ['orders={"0": 7, "1": 9}']
    assert where({"source-0": (3,)}, 'orders={"0":5}') == ['orders={"0":5}']


def test_topics_that_the_query_does_not_read_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"reads the topic 'orders', but the query's sources are: payments \[7\]"):
        where({"payments": (7,)})
    with pytest.raises(Refused, match="the query also reads 'payments', which stage 'totals' does not"):
        where({"orders": (7,), "payments": (7,)})
    app, by_country = sw.App("shop"), sw.repartition("by-country", "country")
    app.stage(reads=sw.topic("orders"), writes=by_country, name="parsed")(lambda rows: rows)
    app.stage(reads=by_country, key="country", state=sw.aggregate(n=sw.count()), name="totals")(lambda rows: rows)
    with pytest.raises(Refused, match="reads 'by-country' of another stage"):
        where({"orders": (7,)}, of=app.stages["totals"])
