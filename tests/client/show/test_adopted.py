"""Output of `adopt`: the mapping, the versions, and the comparison of a stage with the query."""

import numpy as np
import pyarrow as pa
from slackwater.client.show import programs as shown
from slackwater.operations.from_spark.adopt.adopting import AdoptionPlan
from slackwater.operations.from_spark.adopt.adoption import AdoptionResult, Checksum
from slackwater.operations.from_spark.adopt.mapping import map_tables
from slackwater.operations.from_spark.adopt.shadow import ShadowBatch
from slackwater.snapshot.diff.key_changes import KeyChanges

from tests.operations.from_spark.adopt.adopting import declared
from tests.operations.from_spark.adopt.test_adoption import ORDERS, ROWS, TOTALS


def test_the_plan_shows_the_source_of_each_column() -> None:
    table = declared(ORDERS, ROWS, ["country"])
    mapping = map_tables([TOTALS], table, "stage shop/totals")
    plan = AdoptionPlan(
        "shop", "totals", "6a1c", "/totals", range(17, 118), ("aggregate",), table, mapping.columns, {"orders": (7, 8)}
    )
    found = shown.adoption_plan_result(plan)
    said = str(found)
    assert "/totals, the query 6a1c, would become shop/totals; nothing was changed" in said
    assert "batches 17 to 117 would become 101 versions; the first has all rows at the end of batch 17" in said
    columns = found.data["columns"]  # type: ignore[index]
    assert columns["weight"] == {"type": "double", "of": ["sum_2", "count_2"], "how": "sum_2 / count_2"}
    assert columns["orders"] == {"type": "int64", "of": ["count"], "how": ""}


def test_the_result_says_how_to_continue() -> None:
    done = AdoptionResult("shop", "totals", 101, 117, Checksum(1_234, 255), {"orders": (7, 8)})
    said = str(shown.adoption_result(done, "shop.py"))
    assert "equal to what Spark reads at that batch: 1,234 rows, checksum 00000000000000ff" in said
    assert "slackwater run shop.py --app shop" in said
    again = shown.adoption_result(AdoptionResult("shop", "totals", 101, 117, None, {}), "shop.py")
    assert str(again).startswith("done already: shop/totals has the query up to batch 117, which is v101")
    assert again.data["already"]  # type: ignore[index]


def test_a_batch_that_differs_shows_the_rows_of_both_sides() -> None:
    equal = shown.shadow_result(ShadowBatch(17, 1_700_000_000_000, 3, 2, None), 86_400, 86_400_000)
    assert "batch 17: 3 records, 2 keys changed: equal for 1 d, 86,400 batches" in str(equal)
    sides = [pa.table({"cents": [each]}) for each in (5, 1)]
    there = np.ones(1, np.bool_)
    changes = KeyChanges.compare(pa.table({"country": ["FR"]}), *sides, there, there)
    found = shown.shadow_result(ShadowBatch(18, 1_700_000_000_000, 3, 2, changes), 0, 0)
    said = str(found)
    assert "1 key differs" in said
    assert "query_cents" in said
    assert "stage_cents" in said
    assert found.data["different_keys"] == 1  # type: ignore[index]
