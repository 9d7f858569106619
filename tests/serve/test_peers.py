"""Several servers of one store: all compute the same owner of a state partition, and a lost server is replaced."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.serve.peers import INSTANCES, Peer, Peers
from slackwater.serve.server import ListenOptions
from slackwater.store.objects.memory import MemoryStore

from tests.support.histories import FlightsApp, flights
from tests.support.running import eventually

from .conftest import Ask

AIRCRAFT = "/apps/flights/at/now/tables/aircraft"
ONE_OF_SEVERAL = ListenOptions(advertise="http://here")


def peers(me: Peer, *others: Peer) -> Peers:
    async def nobody(_function: Callable[[], object]) -> None:
        raise AssertionError

    made = Peers(MemoryStore(), me.url, nobody, lambda: None)
    made.this_instance, made.others = me, {each.id: each for each in others}
    return made


@given(st.integers(2, 6), st.integers(1, 64))
def test_all_instances_agree_on_owners_and_a_lost_one_moves_only_its_own_partitions(
    count: int, partitions: int
) -> None:
    all_of_them = [Peer(f"i{number}", f"http://{number}") for number in range(count)]
    each = [peers(me, *(other for other in all_of_them if other is not me)) for me in all_of_them]
    owned = [set(one.owned_partitions("app", "table", range(partitions))) for one in each]
    assert sorted(place for some in owned for place in some) == [*range(partitions)]
    _, *left = all_of_them
    after = [
        set(peers(me, *(o for o in left if o is not me)).owned_partitions("app", "table", range(partitions)))
        for me in left
    ]
    assert set().union(*after) == {*range(partitions)}
    assert all(before <= now for before, now in zip(owned[1:], after, strict=True))


def test_instances_own_similar_numbers_of_partitions() -> None:
    all_of_them = [Peer(f"i{number}", f"http://{number}") for number in range(4)]
    found = peers(*all_of_them).indices_by_owner("app", "table", np.arange(4_000, dtype=np.int32))
    assert all(800 < len(places) < 1_200 for places in found.values())


@pytest.fixture
def two(own: Callable[..., Ask]) -> tuple[Ask, Ask]:
    return own(ONE_OF_SEVERAL, cache="one"), own(ONE_OF_SEVERAL, cache="two")


def test_any_instance_returns_the_same_answer_for_any_key(app: FlightsApp, two: tuple[Ask, Ask]) -> None:
    tails = [*app.state["aircraft"], "none"]
    eventually(lambda: len(INSTANCES.listed(app.store)) == 2, "both are listed")
    for _ in range(5):
        app.run(flights(1))
        expected = [app.state["aircraft"][tail][0] if tail != "none" else None for tail in tails]
        for ask in two:
            version = app.heads["aircraft"].version
            eventually(lambda ask=ask, version=version: ask(AIRCRAFT, key="x").json["version"] == version, "it follows")
            found = ask(AIRCRAFT, key=tails, column="flights").json["rows"]
            assert [row and row["flights"] for row in found] == expected


def test_a_forwarded_request_carries_the_clients_token(app: FlightsApp, two: tuple[Ask, Ask]) -> None:
    """The servers find each other within two heartbeats. A forwarded request is not forwarded again."""
    headers = {"slackwater-hop": "0"}
    assert two[0](AIRCRAFT.replace("now", "v3"), key="N001", stage="aircraft", headers=headers).status == 200
    assert two[0](AIRCRAFT, key="N001", headers={"slackwater-hop": "no number"}).status == 200


def test_requests_succeed_although_a_killed_instance_is_still_listed(
    app: FlightsApp, own: Callable[..., Ask], tmp_path: Path
) -> None:
    ask = own(ONE_OF_SEVERAL)
    # A killed instance: its heartbeat still exists, and nothing answers.
    INSTANCES.put(app.store, Peer("0" * 26, "http://127.0.0.1:1"))
    tails = [*app.state["aircraft"]]
    for _ in range(30):
        found = ask(AIRCRAFT, key=tails, column="flights").json["rows"]
        assert [row["flights"] for row in found] == [app.state["aircraft"][tail][0] for tail in tails]


def test_an_instance_removes_its_heartbeat_when_it_stops(app: FlightsApp, tmp_path: Path) -> None:
    from .conftest import serving

    with serving(app.store.url, tmp_path / "cache", ONE_OF_SEVERAL):
        assert len(INSTANCES.listed(app.store)) == 1
    assert INSTANCES.listed(app.store) == ()
