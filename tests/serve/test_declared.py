"""Declared routes: each is in the OpenAPI document and in the documentation."""

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
def test_each_route_is_in_the_openapi_document_and_in_the_documentation(endpoint: Endpoint) -> None:
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


def test_query_parameters_are_parsed_to_their_types() -> None:
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
def test_invalid_query_parameters_are_refused(query: list[tuple[str, str]]) -> None:
    with pytest.raises(Usage):
        understood("log", *query, app="flights")


def test_a_body_adds_parameters_and_may_not_repeat_those_of_the_path() -> None:
    query = next(each for each in ENDPOINTS if each.name == "query" and each.method == "POST")
    at = {"app": "flights", "ref": "now"}
    assert query.parse_arguments(at, [], b'{"sql": "SELECT 1", "limit": 5}')["limit"] == 5
    for body in (b"{", b"[]", b'{"sql": 1}', b'{"sql": "x", "app": "y"}', b'{"sql": "x", "lmit": 1}', b"\xff"):
        with pytest.raises(Usage):
            query.parse_arguments(at, [], body)
