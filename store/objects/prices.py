"""Prices of S3 for requests and for bytes, and what a stage would cost in a month.

The defaults are the list prices of S3 Standard in US East (N. Virginia), first tier, without tax, as known to us; they
may have changed: see https://aws.amazon.com/s3/pricing/. Requests that delete are free, and so is traffic between
S3 and machines of the same region, and all traffic in.
"""

from typing import Annotated

from msgspec import Meta, Struct

from .stats import Stats

HOURS_A_MONTH = 730
"""365 days of 24 hours, a twelfth of them: what AWS calculates with."""
_GB = 1 << 30
_Price = Annotated[float, Meta(ge=0, le=1e12, description="a number that is not negative")]


class Prices(Struct, frozen=True):
    """Prices, in `currency`. A GB is 2^30 bytes, as on S3's bills."""

    get_per_1000: _Price = 0.0004
    """Also for every other request that reads an object."""
    put_per_1000: _Price = 0.005
    list_per_1000: _Price = 0.005
    delete_per_1000: _Price = 0.0
    stored_per_gb_month: _Price = 0.023
    read_per_gb: _Price = 0.0
    """Traffic out of S3: 0.02 and more to another region, 0.09 and less to the internet."""
    currency: Annotated[str, Meta(min_length=1, description="a string such as 'EUR'")] = "USD"


class Cost(Struct, frozen=True):
    """What a month costs."""

    requests: float
    traffic: float
    storage: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.requests + self.traffic + self.storage


def monthly_cost(hourly: Stats, stored_bytes: int, prices: Prices) -> Cost:
    """What a month costs in which `hourly` is taken each hour, and so many bytes lie in the store all the time."""
    thousands = (
        hourly.gets * prices.get_per_1000
        + hourly.puts * prices.put_per_1000
        + hourly.lists * prices.list_per_1000
        + hourly.deletes * prices.delete_per_1000
    )
    return Cost(
        requests=thousands / 1000 * HOURS_A_MONTH,
        traffic=hourly.bytes_read / _GB * prices.read_per_gb * HOURS_A_MONTH,
        storage=stored_bytes / _GB * prices.stored_per_gb_month,
    )
