"""Declarations of inputs beside Kafka: names, addresses and options, and what is refused."""

from typing import Any

import pytest
import slackwater as sw
from slackwater.errors import Usage


def test_an_input_is_named_by_its_kind_and_the_last_part_of_its_address() -> None:
    assert sw.read_files("s3a://bucket/in/Web_Orders/").name == "files:web-orders"
    assert sw.read_delta("/lake/orders").name == "delta:orders"
    assert sw.read_iceberg("lake.sales.orders", name="o").name == "iceberg:o"
    source = sw.read_files("s3a://bucket/in/Web_Orders/", format="csv", header=True, max_files_per_trigger=5).source
    assert source is not None
    assert (source.address, source.content, source.header, source.max_files) == (
        "s3://bucket/in/Web_Orders",
        "csv",
        True,
        5,
    )


@pytest.mark.parametrize(
    ("kind", "path", "options", "message"),
    [
        ("files", "/in", {"header": True}, "header is for CSV; the format is 'json'"),
        ("files", "/in", {"format": "orc"}, "format"),
        (
            "files",
            "/in",
            {"max_files_per_trigger": 0},
            "max_files_per_trigger is 0; expected a whole number, 1",
        ),
        ("files", "s3://key:secret@bucket/in", {}, "path is a URL with a password or a query"),
        ("files", "/", {}, "name"),
        ("files", "s3://bucket/2024/", {}, "name '2024' is not usable: expected a name with a letter"),
        ("delta", "/t", {"starting_version": -1}, "starting_version is -1"),
        ("delta", "/t", {"starting_offsets": "newest"}, "expected 'earliest', 'latest' or JSON"),
        ("iceberg", "orders", {}, "expected CATALOG.NAMESPACE.TABLE"),
        ("iceberg", "lake.sales.orders", {"name": "Ä"}, "name 'Ä' is not usable"),
    ],
)
def test_impossible_declarations_are_refused(kind: str, path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Usage, match=message) as refused:
        getattr(sw, f"read_{kind}")(path, **options)
    assert "secret" not in str(refused.value)


def test_topics_of_kafka_cannot_have_names_of_sources() -> None:
    with pytest.raises(Usage, match="topic name 'files:orders' is not usable"):
        sw.topic("files:orders")
