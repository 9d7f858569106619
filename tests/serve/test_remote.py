"""`sw.open` with a server's URL gives the same results as with the server's store."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import slackwater as sw
from slackwater.client import Client
from slackwater.client.app import StoredApp
from slackwater.client.moment import Moment
from slackwater.client.reconcile.result import absence_data, reconciliation_data
from slackwater.client.remote import Server
from slackwater.client.show.shown import encode_json
from slackwater.errors import Forbidden, MomentGone, NotFound, Refused, TooMuch, Unavailable, Usage
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.serve.server import ListenOptions

from tests.support.histories import FlightsApp, flights
from tests.support.running import eventually

from .conftest import Ask, client_of


@pytest.fixture
def client(written: FlightsApp) -> Iterator[Client]:
    with client_of(written) as opened:
        yield opened


def test_a_url_opens_a_server(instance: str) -> None:
    with sw.open(instance) as opened:
        assert isinstance(opened, Server)
        assert opened.apps == ("flights",)


def test_moments_and_rows_are_the_same(client: Client, server: Server) -> None:
    mine, theirs = client.app("flights").at("~2"), server.app("flights").at("~2")
    assert theirs.versions == mine.versions
    assert theirs.time == mine.time
    assert theirs.tables == mine.tables
    assert theirs.get("carriers", "C1") == mine.get("carriers", "C1")
    assert theirs.get("carriers", "C9") is None
    keys = ["C2", "C9", "C0"]
    assert theirs.get_many("carriers", keys, ["delay"]) == mine.get_many("carriers", keys, ["delay"])
    sql = "SELECT carrier, flights / 2 AS half FROM carriers ORDER BY 1"
    assert theirs.query(sql).fetchall() == mine.query(sql).fetchall()
    assert theirs.query(sql).types == mine.query(sql).types
    assert repr(server.app("flights").at("v3", stage="carriers").tables) == repr(
        client.app("flights").at("v3", stage="carriers").tables
    ).replace("flights/carriers@v3", "flights/carriers@v3")


def test_logs_histories_diffs_and_lineage_are_the_same(client: Client, server: Server) -> None:
    mine, theirs = client.app("flights"), server.app("flights")
    assert theirs.log(5) == mine.log(5)
    assert repr(theirs.log(5)) == repr(mine.log(5))
    assert theirs.snapshots == mine.snapshots
    assert theirs.lineage("carriers") == mine.lineage("carriers")
    for key in ("C1", ""):
        assert theirs.history("carriers", key) == mine.history("carriers", key)
    found, expected = theirs.diff("~3"), mine.diff("~3")
    assert found.keys() == expected.keys()
    for table in expected:
        assert found[table].rows.fetchall() == expected[table].rows.fetchall()
    assert repr(found) == repr(expected)


def test_a_moment_opened_as_now_is_fixed(server: Server, written: FlightsApp) -> None:
    moment = server.moment("flights")
    assert moment.versions["carriers"] == written.heads["carriers"].version
    assert moment.get("carriers", "C1") is not None


def test_errors_are_the_same(server: Server) -> None:
    with pytest.raises(NotFound, match="the nearest: flights"):
        server.app("flihgts")
    with pytest.raises(Usage, match="is in the future"):
        server.app("flights").at("2999-01-01")
    with pytest.raises(NotFound, match=r"no table at .* named 'cariers'"):
        server.moment("flights").get("cariers", "C1")
    with pytest.raises(TooMuch, match="more than"):
        server.moment("flights").query("FROM range(20000)")
    with pytest.raises(Refused, match="has not read") as raised:
        server.app("flights").at(min_offsets=["flights:0:999999"], wait_ms=1)
    assert raised.value.__dict__["offsets"]["flights"]
    assert MomentGone.__mro__[1] is NotFound


def test_searches_and_snapshot_requests_work_through_a_server(own: Callable[..., Ask], app: FlightsApp) -> None:
    ask, where, steps = own(ListenOptions(needs_tokens=True)), "SELECT carrier FROM carriers WHERE flights >= 9", []
    with client_of(app) as client:
        data: Any = client.add_token("page", ["flights"], verbs=("read", "bisect", "snapshot")).data
        expected = client.app("flights").bisect(where=where).verdict.bad_ref
    with sw.open(ask.url, token=data["token"]) as opened:
        server: Any = opened
        assert server.me["verbs"] == ["bisect", "read", "snapshot"]
        found = server.app("flights").bisect(where=where, on_step=steps.append)
        assert found["first_bad"]["ref"] == expected
        assert {each["outcome"] for each in steps} == {"good", "bad"}
        with pytest.raises(Refused, match="no rows"):
            server.app("flights").bisect(where="SELECT carrier FROM carriers WHERE flights < 0")
        with pytest.raises(Usage):
            server.app("flights").bisect()
        asked = server.app("flights").ask_snapshot("looked-at", "ticket 7")
        assert (asked["name"], asked["by"]) == ("looked-at", "page")


def test_the_configured_token_is_sent(
    own: Callable[..., Ask], app: FlightsApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = own(ListenOptions(needs_tokens=True))
    with client_of(app) as client:
        token = client.add_token("reader", ["flights"]).data["token"]  # type: ignore[index]
    with sw.open(ask.url) as opened, pytest.raises(Forbidden, match="token is required"):
        _ = opened.apps
    with sw.open(ask.url, token=token) as opened:
        assert opened.apps == ("flights",)
        with pytest.raises(Forbidden, match="may not sql"):
            opened.app("flights").at().query("SELECT 1")
    monkeypatch.setenv("SLACKWATER_TOKEN", token)
    with sw.open(ask.url) as opened:
        assert opened.apps == ("flights",)


def test_an_unreachable_server_raises_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(f"http://127.0.0.1:{choose_port()}") as nobody, pytest.raises(Unavailable, match="does not answer"):
        _ = nobody.apps


def test_verification_timeline_and_other_methods_are_the_same(client: Client, server: Server) -> None:
    mine, theirs = client.app("flights"), server.app("flights")
    for at in ({"moment": "~2"}, {"moment": "now"}, {"moment": "v3", "stage": "carriers"}):
        expected, found = mine.at(**at).verify(), theirs.at(**at).verify()
        assert replace(found.report, requests=0, bytes_read=0) == replace(expected.report, requests=0, bytes_read=0)
    assert theirs.verify("flights@~2", deep=True, on_progress=str).consistent
    assert repr(mine.at("~3").diff(mine.at())) == repr(theirs.at("~3").diff(theirs.at()))
    line, expected_line = theirs.timeline(50), mine.timeline(50)
    assert [(each.stage, each.version) for each in line.points] == [(p.stage, p.version) for p in expected_line.points]
    assert (line.commits, line.marks) == (expected_line.commits, expected_line.marks)
    assert repr(theirs.operations()) == repr(mine.operations())
    assert theirs.rejected() == mine.rejected()
    assert theirs.stages(theirs.at("~2"))["stages"] == encoded_again(mine.stages(mine.at("~2"))["stages"])
    with pytest.raises(Refused, match="started without its program"):
        theirs.replay("carriers", 3)
    with pytest.raises(Refused, match="started without its program"):
        theirs.why("carriers", "C1")
    with pytest.raises(Refused, match="started without its program"):
        theirs.impact("flights[0]@1")


def test_reconciliations_and_reasons_are_the_same(client: Client, server: Server) -> None:
    mine, theirs = client.app("flights"), server.app("flights")
    other, how = "flights/carriers@~3", {"at": "~1", "columns": {"flights": "flights"}, "tolerance": 0.5}
    compared = theirs.reconcile("carriers", other, limit=2, **how)
    expected = mine.reconcile("carriers", other, limit=2, **how).full_result
    assert compared == {**encoded_again(reconciliation_data(expected)), "notes": []}
    assert len(compared["keys"]) == 2
    for choice in ({}, {"record": "flights[0]@1"}, {"where": "partition = 0"}):
        found = theirs.why_not("carriers", "C1", **choice)
        assert found == {
            **encoded_again(absence_data(mine.why_not("carriers", "C1", **choice).full_result)),
            "notes": [],
        }
    with pytest.raises(Usage, match="not allowed"):
        theirs.why_not("carriers", "C1", where="getenv('HOME') <> ''")
    with pytest.raises(NotFound, match="etc"):
        theirs.reconcile("carriers", "etc/passwd")


def test_a_token_compares_only_with_apps_that_it_may_read(own: Callable[..., Ask], app: FlightsApp) -> None:
    ask = own(ListenOptions(needs_tokens=True))
    with client_of(app) as client:
        token = client.add_token("reader", ["flights"], verbs=["read", "bisect"]).data["token"]  # type: ignore[index]
    with sw.open(ask.url, token=token) as opened, pytest.raises(Forbidden, match="may not read app 'others'"):
        opened.app("flights").reconcile("carriers", "others/carriers")


def encoded_again(data: object) -> Any:
    return msgspec.json.decode(encode_json(data))


def test_a_moment_opened_as_now_is_fixed_for_sql_and_verification_too(own: Callable[..., Ask], app: FlightsApp) -> None:
    with sw.open(own().url) as opened:
        moment = opened.app("flights").at()
        before = moment.query("SELECT sum(flights) FROM carriers").fetchall()
        app.send(*flights(9))
        app.step_all()
        newest = {name: head.version for name, head in app.heads.items()}
        eventually(lambda: opened.app("flights").at().versions == newest, "the commits are seen")
        assert opened.app("flights").at().query("SELECT sum(flights) FROM carriers").fetchall() != before
        assert moment.query("SELECT sum(flights) FROM carriers").fetchall() == before
        assert moment.verify().report.versions == moment.versions


@pytest.mark.parametrize(
    ("of", "local", "more"),
    [
        (lambda server: server, Client, {"me", "http"}),
        (lambda server: server.app("flights"), StoredApp, {"ask_snapshot", "replay", "name", "called"}),
        (lambda server: server.moment("flights"), Moment, {"offsets", "when", "stage", "ref"}),
    ],
    ids=("store", "app", "moment"),
)
def test_methods_that_need_the_store_say_so(
    server: Server, of: Callable[[Server], Any], local: type, more: set[str]
) -> None:
    remote = of(server)
    has, has_here = ({name for name in dir(each) if not name.startswith("_")} for each in (local, remote))
    assert has - has_here == remote.unavailable_methods
    assert has_here - has == more | {"unavailable_methods"}
    for name in remote.unavailable_methods:
        with pytest.raises(Refused, match=f"{name} needs the store itself"):
            getattr(remote, name)
    assert not hasattr(remote, "no_such_method")
