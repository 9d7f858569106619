"""Orders in Avro, as producers with a schema registry send them, added up by country.

    $ pip install -c constraints.txt '.[spark,registry]'
    $ export SHOP_REGISTRY=http://localhost:8081
    $ slackwater run examples/shop.py --store ./state --kafka localhost:9092

The topic is `orders`, its schema the subject `orders-value`: a record with `country` and `cents` at least. What is no
such message is counted under no country, instead of stopping the app.
"""

import os

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("shop")
by_country = sw.repartition("by-country", key="country")


@app.stage(reads=sw.topic("orders"), writes=by_country)
def orders(messages: DataFrame) -> DataFrame:
    """The order in each message, and which message it was."""
    order = sw.decode("value", registry=os.environ.get("SHOP_REGISTRY", "http://localhost:8081"), mode="PERMISSIVE")
    decoded = messages.select(order.alias("o"), "partition", "offset")
    return decoded.select(F.coalesce("o.country", F.lit("?")).alias("country"), "o.cents", "partition", "offset")


@app.stage(reads=by_country, state=sw.aggregate(orders=sw.count(), cents=sw.sum("cents"), last=sw.max("offset")))
def countries(orders: DataFrame) -> DataFrame:
    """What each country ordered."""
    return orders
