"""Declared routes: the OpenAPI document and the documentation have all of them."""

from pathlib import Path
from typing import Any

import pytest
from slackwater.errors import Usage
from slackwater.serve import reads  # noqa: F401  declares its routes
from slackwater.serve.declare import ENDPOINTS, Endpoint
from slackwater.serve.openapi import openapi_document

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
NAMED = {each.name: each for each in ENDPOINTS}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_route_is_in_the_document_and_on_the_page(endpoint: Endpoint) -> None:
    operation = openapi_document(ENDPOINTS)["paths"][endpoint.path][endpoint.method.lower()]
    assert operation["summary"].endswith(".")
    told = {each["name"] for each in operation["parameters"]}
    if endpoint.method == "POST":
        told |= {*operation["requestBody"]["content"]["application/json"]["schema"]["properties"]}
    assert told == set(endpoint.parameters.__struct_fields__)
    assert all(each["description"] for each in operation["parameters"] if each["schema"])
    assert endpoint.path in PAGE.read_text()


def understood(name: str, *query: tuple[str, str], body: bytes = b"", **in_path: str) -> dict[str, Any]:
    return NAMED[name].parse_arguments(in_path, query, body)


def test_what_is_asked_is_of_its_parameters_types() -> None:
    found = understood("get", ("key", "a"), ("key", "b"), ("wait_ms", "7"), app="flights", ref="now", table="carriers")
    assert (found["key"], found["wait_ms"], found["column"], found["stage"]) == (["a", "b"], 7, [], "")


@pytest.mark.parametrize(
    "query",
    [
        [("limit", "0")],
        [("limit", "10001")],
        [("limit", "1.5")],
        [("limit", "1"), ("limit", "2")],
        [("limt", "1")],
        [("app", "other")],
    ],
)
def test_what_is_not_is_refused(query: list[tuple[str, str]]) -> None:
    with pytest.raises(Usage):
        understood("log", *query, app="flights")


def test_a_body_adds_to_the_address_and_says_nothing_twice() -> None:
    query = next(each for each in ENDPOINTS if each.name == "query" and each.method == "POST")
    at = {"app": "flights", "ref": "now"}
    assert query.parse_arguments(at, [], b'{"sql": "SELECT 1", "limit": 5}')["limit"] == 5
    for body in (b"{", b"[]", b'{"sql": 1}', b'{"sql": "x", "app": "y"}', b'{"sql": "x", "lmit": 1}', b"\xff"):
        with pytest.raises(Usage):
            query.parse_arguments(at, [], body)
