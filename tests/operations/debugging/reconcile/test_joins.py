"""Orders without a payment are reported as joined with nothing; others are counted, or reported as unknown."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.client.client import Client
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import encode_rows
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.settings import Settings
from slackwater.state.kinds.join import join
from slackwater.store.versions import apps, commit
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Output, Table
from slackwater.store.versions.side_tables import REJECTED

from tests.support.state_rows import Key, Values, write_version

SIDE = "list<struct<at: int64>>"
WAITING = Table(
    (Column("id", "string"),),
    (Column("orders", SIDE), Column("payments", SIDE)),
    1,
    state=join("orders", "payments", within="10 ms").stored,
)
PAID = Table((Column("id", "string"),), (Column("n", "int64"),), 1)
FROM_BOTH = (FieldSource("orders", "$.id"), FieldSource("payments", "$.id"))
LINEAGES = {
    "pairs": {"": {"id": FROM_BOTH}, "by-id": {"id": FROM_BOTH}},
    "paid": {"": {"id": (FieldSource("by-id", "id"),)}},
}
ONE: list[dict[str, int]] = [{"at": 1}]


class Shop:
    """An app: `pairs` joins orders with payments, and `paid` counts the pairs of each order."""

    def __init__(self, folder: Path) -> None:
        self.kafka = MemoryKafka.named(f"memory://{folder}")
        self.kafka.create_topics({"orders": 1, "payments": 1})
        settings = Settings(store=str(folder / "store"), brokers=self.kafka.address, cache=str(folder / "cache"))
        self.client = Client(settings)
        apps.create_app(self.client.store, AppInfo("shop", 1))
        pairs = Manifest("shop", "pairs", 1, 1, "w", 1, "claim", table=WAITING, lineage=LINEAGES["pairs"])
        topics = {name: Input(name, (0,)) for name in ("orders", "payments")}
        output = Output("by-id", (0,), (0,), schema="`id` string")
        paid = Manifest("shop", "paid", 1, 1, "w", 1, "claim", table=PAID, lineage=LINEAGES["paid"])
        self.heads = {
            "pairs": replace(pairs, inputs=topics, outputs={"by-id": output}),
            "paid": replace(paid, inputs={"by-id": Input("by-id", (0,), "pairs", 0, consumed=(0,))}),
        }
        for head in self.heads.values():
            commit.commit(self.client.store, head)

    def send(self, topic: str, *ids: str) -> None:
        self.kafka._append(topic, [Record(json.dumps({"id": name}).encode(), partition=0) for name in ids])

    def step(self, stage: str, changes: dict[Key, Values | None], rejected: str = "") -> None:
        """Commit a version that reads all available records and writes these rows.

        With `rejected`, it rejects the row with this id.
        """
        head = self.heads[stage]
        draft = commit.successor(head, kind="batch", epoch=1, writer="w", by="t", now_ms=1)
        assert draft.table is not None
        ssts = write_version(
            self.client.store, None, draft.table, changes, draft.version, app="shop", stage=stage, base=head.ssts
        )
        inputs = {
            name: replace(
                source,
                offsets=(len(self.kafka._topics[name][0].log),) if not source.upstream else source.offsets,
                version=self.heads[source.upstream].version if source.upstream else 0,
            )
            for name, source in head.inputs.items()
        }
        sides = dict(head.side_tables)
        if rejected:
            message = encode_rows(pa.table({"id": [rejected]}).combine_chunks())
            letter = DeadLetter("by-id", 0, 5, None, message, (), "ValueError", "no such id", "", "by-id")
            row = rejected_row(letter, version=draft.version, now_ms=1)
            table = RejectedTable(self.client.store, self.client.cache, "shop", stage)
            sides[REJECTED] = table.upsert(head, [row], draft.version, added=1, waiting=1)
        self.heads[stage] = replace(draft, ssts=(*ssts, *head.ssts), inputs=inputs, side_tables=sides)
        commit.commit(self.client.store, self.heads[stage])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.send("orders", "alone", "paid", "apart", "waits")
    shop.send("payments", "paid", "apart")
    shop.step("pairs", {("alone",): (ONE, []), ("paid",): (ONE, ONE), ("apart",): (ONE, ONE), ("waits",): (ONE, [])})
    shop.step("paid", {("paid",): (1,)})
    shop.step("pairs", {("alone",): None, ("paid",): None, ("apart",): None})
    shop.step("paid", {})
    return shop


def test_an_order_without_a_payment_is_joined_with_nothing(shop: Shop) -> None:
    ids = ["alone", "paid", "apart", "waits"]
    with shop.client:
        found = shop.client.app("shop").reconcile("paid", pa.table({"id": ids, "n": [1] * 4})).full_result
    reasons = {str(each.key["id"]): each.reasons for each in found.keys}
    assert {name: (some[0].kind, some[0].proved) for name, some in reasons.items()} == {
        "alone": ("unmatched", True),
        "waits": ("unmatched", True),
        "apart": ("filtered", False),
    }
    assert "until v3" in reasons["alone"][0].sentence
    assert "still" in reasons["waits"][0].sentence
    assert "or pairs joined it with nothing" in reasons["apart"][0].sentence


def test_an_order_whose_payment_comes_later_is_counted(shop: Shop) -> None:
    shop.send("payments", "waits")
    shop.step("pairs", {("waits",): (ONE, ONE)})
    shop.step("paid", {("waits",): (1,)})
    with shop.client:
        found = shop.client.app("shop").why_not("paid", "waits").full_result
    assert found.reasons == ()
    assert {(str(reason.record), reason.proved) for reason in found.counted} == {
        ("orders[0]@3", False),
        ("payments[0]@2", True),
    }


def test_a_row_that_the_next_stage_rejected_is_found_by_its_key(shop: Shop) -> None:
    shop.send("orders", "bad", "good")
    shop.step("pairs", {("bad",): (ONE, ONE), ("good",): (ONE, ONE)})
    shop.step("paid", {("good",): (1,)}, rejected="bad")
    with shop.client:
        (reason,) = shop.client.app("shop").why_not("paid", "bad").full_result.reasons
        assert shop.client.app("shop").why_not("paid", "good").full_result.reasons == ()
    assert (reason.kind, reason.proved, str(reason.record)) == ("rejected", True, "orders[0]@4")
    assert "no such id" in reason.sentence


def test_what_one_stage_sent_and_the_next_has_not_read_is_in_flight(shop: Shop) -> None:
    shop.send("orders", "new")
    shop.step("pairs", {("new",): (ONE, ONE)})
    with shop.client:
        (reason,) = shop.client.app("shop").why_not("paid", "new").full_result.reasons
    assert reason.kind == "unread"
    assert "in flight" in reason.sentence
