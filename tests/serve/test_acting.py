"""Actions over HTTP: searches with their events, snapshot requests, replays, and the rights that they need."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import urllib3
from slackwater.client import Client
from slackwater.serve.server import ListenOptions

from tests.support.histories import FlightsApp
from tests.support.running import eventually

from .conftest import FAST, Ask, client_of
from .test_access import GUARDED, made

BISECT = "/apps/flights/bisect"
MANY = "SELECT carrier FROM carriers WHERE flights >= 9"


def events(ask: Ask, body: object, path: str = BISECT, **headers: str) -> list[tuple[str, Any]]:
    """Return the events of a POST. If it is refused, returns one pair of status and error."""
    pool = urllib3.PoolManager(retries=False, timeout=120)
    found = pool.request("POST", ask.url + path, body=msgspec.json.encode(body), headers=headers)
    if found.headers["content-type"] != "text/event-stream; charset=utf-8":
        return [(str(found.status), found.json())]
    return list(parsed(found.data.decode()))


def parsed(text: str) -> Iterator[tuple[str, Any]]:
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        yield name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


def post(ask: Ask, path: str, body: object, token: str = "") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    found = urllib3.PoolManager(retries=False, timeout=120).request(
        "POST", ask.url + path, body=msgspec.json.encode(body), headers=headers
    )
    return found.status, found.json()


def test_a_search_sends_an_event_per_moment_and_then_the_commit(written: FlightsApp, ask: Ask) -> None:
    found = events(ask, {"where": MANY})
    probes = [each for name, each in found if name == "probe"]
    assert {each["outcome"] for each in probes} == {"good", "bad"}
    # How many are left is counted down from an upper bound.
    lefts = [each["left"] for each in probes]
    assert lefts == [*range(lefts[0], lefts[0] - len(lefts), -1)]
    assert lefts[-1] >= 0
    assert probes[0]["versions"]["carriers"] == written.heads["carriers"].version
    name, verdict = found[-1]
    expected = client_of(written).app("flights").bisect(where=MANY)
    assert (name, verdict["first_bad"]["ref"], verdict["cut_off"]) == ("found", expected.verdict.bad_ref, False)
    assert verdict["source_windows"][0]["topic"] == "flights"
    assert verdict["keys"][0]["after"]["flights"] >= 9


def test_a_search_can_use_a_condition_and_its_rows_are_limited(ask: Ask) -> None:
    by_condition = events(ask, {"check": "flights < 9", "table": "carriers"})[-1][1]
    by_where = events(ask, {"where": "flights >= 9", "table": "carriers"})[-1][1]
    of_query = events(ask, {"where": MANY})[-1][1]
    assert by_condition["first_bad"] == by_where["first_bad"] == of_query["first_bad"]
    assert by_condition["keys"] == by_where["keys"] == of_query["keys"]
    found = events(ask, {"where": "SELECT tail FROM aircraft WHERE flights > 0", "limit": 1})[-1][1]
    assert len(found["rows"]) <= 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"where": "SELECT carrier FROM carriers WHERE flights < 0"}, "Refused"),
        ({"where": "SELEC"}, "NotFound"),
        ({"where": "SELECT nothing FROM carriers"}, "NotFound"),
        ({"where": "FROM '/etc/passwd'"}, "NotFound"),
        ({"where": "FROM read_csv('/etc/passwd')"}, "Usage"),
        ({"where": "SELECT getenv('HOME')"}, "Usage"),
        ({"check": "getenv('HOME') = ''", "table": "carriers"}, "Usage"),
        ({"check": "nothing > 1"}, "NotFound"),
        ({"where": "nothing > 1"}, "NotFound"),
        ({"where": "getenv('HOME') <> ''", "table": "carriers"}, "Usage"),
        ({"where": MANY, "table": "carriers"}, "Usage"),
        ({"where": MANY, "good": "now", "bad": "~3"}, "Refused"),
        ({"where": MANY, "bad": "none-such"}, "NotFound"),
    ],
)
def test_an_impossible_search_ends_with_an_error_event(written: FlightsApp, ask: Ask, body: object, error: str) -> None:
    name, found = events(ask, body)[-1]
    assert (name, found["error"]) == ("error", error), found
    assert written.store.url not in str(found)


@pytest.mark.parametrize("body", [{}, {"where": MANY, "check": "true"}, []])
def test_a_search_without_a_predicate_is_a_bad_request(ask: Ask, body: object) -> None:
    assert events(ask, body)[0][0] == "400"


def test_an_evaluation_beyond_its_time_limit_ends_the_search(own: Callable[..., Ask]) -> None:
    ask = own(options=replace(FAST, sql_timeout_s=2.0, sql_processes=1))
    endless = "SELECT carrier FROM carriers, range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
    name, found = events(ask, {"where": endless})[-1]
    assert (name, found["error"]) == ("error", "TooMuch")
    assert events(ask, {"where": MANY})[-1][0] == "found"


def test_a_disconnected_client_ends_its_search_and_frees_its_slot(own: Callable[..., Ask]) -> None:
    ask = own(options=replace(FAST, sql_timeout_s=60, sql_processes=1, max_long_operations=1))
    endless = "SELECT carrier FROM carriers, range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
    body = msgspec.json.encode({"where": endless})
    pool = urllib3.PoolManager(retries=False, timeout=120)
    with pool.request("POST", ask.url + BISECT, body=body, preload_content=False) as begun:
        assert begun.status == 200
        assert events(ask, {"where": MANY})[0][0] == "429"
        begun.close()
    eventually(lambda: events(ask, {"where": MANY})[-1][0] == "found", "the place is free")


def test_a_search_beyond_its_time_limit_says_so(own: Callable[..., Ask]) -> None:
    ask = own(options=replace(FAST, sql_timeout_s=60, sql_processes=1, long_timeout_s=0.5))
    endless = "SELECT carrier FROM carriers, range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
    assert events(ask, {"where": endless})[-1][1]["error"] == "TooMuch"


@pytest.fixture
def client(app: FlightsApp) -> Client:
    return client_of(app)


def test_me_lists_the_rights_of_a_token(client: Client, own: Callable[..., Ask], ask: Ask) -> None:
    guarded = own(GUARDED)
    reads = made(client, "reads", tables=("carriers",))
    expected = {"name": "reads", "verbs": ["read"], "apps": ["flights"], "tables": ["carriers"]}
    me = guarded.token(reads, "/me").json
    assert any("other than carriers" in sentence for sentence in me.pop("hidden"))
    assert me == expected
    assert guarded("/me").status == 401
    everything = {"name": "", "verbs": ["bisect", "read", "sql"], "apps": ["*"], "tables": ["*"], "hidden": []}
    assert ask("/me").json == everything


def test_searches_and_snapshots_need_their_verbs_and_access_to_all_tables(
    client: Client, own: Callable[..., Ask]
) -> None:
    ask = own(GUARDED)
    reads = made(client, "reads", verbs=("read", "sql"))
    some = made(client, "some", tables=("carriers",), verbs=("bisect", "snapshot"))
    searches = made(client, "searches", verbs=("bisect",))
    for token in (reads, some):
        assert post(ask, BISECT, {"where": MANY}, token)[0] == 403
        assert post(ask, "/apps/flights/snapshots", {}, token)[0] == 403
    bearer = f"Bearer {searches}"
    assert events(ask, {"where": MANY}, authorization=bearer)[-1][0] == "found"
    assert events(ask, {"where": MANY}, "/apps/other/bisect", authorization=bearer)[0][0] == "403"


def test_a_snapshot_request_carries_the_tokens_name(client: Client, own: Callable[..., Ask]) -> None:
    ask = own(GUARDED)
    token = made(client, "page", verbs=("read", "snapshot"))
    status, found = post(ask, "/apps/flights/snapshots", {"name": "looked-at", "message": "ticket 7"}, token)
    assert (status, found["name"], found["by"]) == (200, "looked-at", "page")
    asked = ask.token(token, "/apps/flights/snapshots").json["requests"]
    assert [each["name"] for each in asked] == ["looked-at"]
    assert post(ask, "/apps/flights/snapshots", {"name": "No Name"}, token)[0] == 400
    open_to_all = own(ListenOptions(), FAST, "other")
    assert post(open_to_all, "/apps/flights/snapshots", {"name": "x"})[0] == 403


def test_a_moment_can_be_verified(written: FlightsApp, ask: Ask) -> None:
    found = ask("/apps/flights/at/~3/verify", deep="true").json
    assert (found["consistent"], found["deep"], found["differences"]) == (True, True, [])
    assert ask("/apps/flights/at/none-such/verify").status == 404


def test_a_replay_without_the_program_is_refused(ask: Ask) -> None:
    status, found = post(ask, "/apps/flights/replay", {"stage": "carriers", "version": 3})
    assert (status, found["error"]) == (409, "Refused")
    assert "--code flights=FILE" in found["hint"]
    assert post(ask, "/apps/flights/replay", {"stage": "carriers", "version": 999})[0] == 404


def test_a_web_page_of_another_host_can_start_nothing(ask: Ask) -> None:
    for origin in ("http://evil.example", "null", "http://[", "http://localhost.evil.example"):
        assert events(ask, {"where": MANY}, origin=origin)[0][0] == "403"
    assert events(ask, {"where": MANY}, origin=ask.url)[-1][0] == "found"
