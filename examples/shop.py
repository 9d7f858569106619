"""Orders in Avro, as producers with a schema registry send them, summed by country.

    $ pip install -c constraints.txt '.[spark,registry]'
    $ export SHOP_REGISTRY=http://localhost:8081
    $ slackwater run examples/shop.py --store ./state --kafka localhost:9092

The topic is `orders`. Its schema is the subject `orders-value`: a record with at least `country` and `cents`. Messages
of any other form are counted under the country `?`, and do not stop the app.
"""

import os

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("shop")
by_country = sw.repartition("by-country", key="country")


@app.stage(reads=sw.topic("orders"), writes=by_country)
def orders(messages: DataFrame) -> DataFrame:
    """Decode the order in each message. Keeps the message's partition and offset."""
    order = sw.decode("value", registry=os.environ.get("SHOP_REGISTRY", "http://localhost:8081"), mode="PERMISSIVE")
    decoded = messages.select(order.alias("o"), "partition", "offset")
    return decoded.select(F.coalesce("o.country", F.lit("?")).alias("country"), "o.cents", "partition", "offset")


@app.stage(reads=by_country, state=sw.aggregate(orders=sw.count(), cents=sw.sum("cents"), last=sw.max("offset")))
def countries(orders: DataFrame) -> DataFrame:
    """Count and sum the orders of each country."""
    return orders
