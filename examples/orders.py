"""Totals of orders by customer. `make demo` compares them with a warehouse's totals, which differ."""

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("orders")


@app.stage(
    reads=sw.topic("orders"),
    key="customer",
    state=sw.aggregate(orders=sw.count(), cents=sw.sum("cents")),
    on_error="reject",
)
def customers(orders: DataFrame) -> DataFrame:
    """Count and sum each customer's orders. An order whose amount is not a number is rejected."""
    order = F.from_json(F.col("value").cast("string"), "customer string, cents long", {"mode": "FAILFAST"})
    return orders.select(order.alias("o")).select("o.*")
