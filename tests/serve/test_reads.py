"""Each read route returns the library's results, with their freshness."""

import threading
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
import urllib3
from slackwater.client.remote import Server
from slackwater.client.show import history as shown
from slackwater.client.show.shown import encode_json
from slackwater.common.instants import format_iso
from slackwater.store.versions import horizon, keys
from slackwater.store.versions.horizon import Boundary

from tests.support.histories import STAGES, Flight, FlightsApp, flights
from tests.support.running import eventually

from .conftest import Ask, client_of

CARRIERS = "/apps/flights/at/now/tables/carriers"


def row(app: FlightsApp, carrier: str) -> dict[str, object]:
    number, delay, _ = app.state["carriers"][carrier]
    return {"carrier": carrier, "flights": number, "delay": delay}


def test_rows_are_returned_in_the_requested_order_with_null_for_missing_ones(written: FlightsApp, ask: Ask) -> None:
    found = ask(CARRIERS, key=["C1", "C9", "C0", "C1"]).json
    assert found["rows"] == [row(written, "C1"), None, row(written, "C0"), row(written, "C1")]


def test_an_answer_has_its_version_time_and_offsets(written: FlightsApp, ask: Ask) -> None:
    found, head = ask(CARRIERS, key="C1").json, written.heads["carriers"]
    assert (found["version"], found["time_ms"]) == (head.version, head.time_ms)
    assert found["offsets"] == {"flights": [*written.heads["legs"].inputs["flights"].offsets]}


def test_only_requested_columns_are_returned(written: FlightsApp, ask: Ask) -> None:
    assert ask(CARRIERS, key="C1", column=["delay"]).json["rows"] == [{"delay": row(written, "C1")["delay"]}]
    assert ask(CARRIERS, key="C1", column="dely").json["message"].endswith("the nearest: delay")


def test_concurrent_requests_each_get_their_own_rows(written: FlightsApp, ask: Ask) -> None:
    found: dict[int, object] = {}
    tails = [*written.state["aircraft"], "none"]

    def one(number: int) -> None:
        keys = [tails[number % len(tails)], tails[(number * 7) % len(tails)]]
        if number % 10 == 9:
            found[number] = ask(CARRIERS, key="C1", stage="nobody").status == 404
        else:
            rows = ask("/apps/flights/at/now/tables/aircraft", key=keys).json["rows"]
            found[number] = [each and each["tail"] for each in rows] == [key if key != "none" else None for key in keys]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(60)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 60
    assert all(found.values())


def test_rows_are_available_in_arrow_with_the_columns_types(written: FlightsApp, ask: Ask) -> None:
    found = ask(CARRIERS, key=["C1", "C9"], format="arrow")
    table = pa.ipc.open_stream(found.body).read_all()
    assert table.schema.field("flights").type == pa.int64()
    assert table["_found"].to_pylist() == [True, False]
    about = msgspec.json.decode(table.schema.metadata[b"slackwater"])
    assert about["version"] == written.heads["carriers"].version


def test_unchanged_rows_are_not_sent_again(ask: Ask) -> None:
    etag = ask(CARRIERS, key="C1").headers["etag"]
    again = ask(CARRIERS, key="C1", headers={"if-none-match": f'"other", {etag}'})
    assert (again.status, again.body) == (304, b"")
    assert ask(CARRIERS, key="C1", format="arrow", headers={"if-none-match": etag}).status == 200
    moment = ask("/apps/flights/at/now").headers["etag"]
    assert ask("/apps/flights/at/now", headers={"if-none-match": moment}).status == 304


def test_rows_of_any_moment_can_be_read(written: FlightsApp, ask: Ask) -> None:
    then = written.version("carriers", 3)
    by_version = ask("/apps/flights/at/v3/tables/carriers", key="C1").json
    by_time = ask(f"/apps/flights/at/{format_iso(then.time_ms, 'milliseconds')}/tables/carriers", key="C1").json
    assert by_version["version"] == by_time["version"] == 3
    assert by_version["rows"] == by_time["rows"]
    assert ask("/apps/flights/at/~2/tables/carriers", key="C1").json["version"] < written.heads["carriers"].version


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/apps/flihgts", 404),
        ("/apps/flights/at/nosuch", 404),
        ("/apps/flights/at/now/tables/carrier?key=a", 404),
        ("/apps/flights/at/v99999/tables/carriers?key=a", 404),
        ("/apps/flights/at/now/tables/carriers", 400),
        ("/apps/flights/at/now/tables/carriers?kye=a", 400),
        ("/apps/flights/at/now/tables/carriers?key=a&stage=x&stage=y", 400),
        ("/apps/flights/log?limit=0", 400),
        ("/apps/flights/log?limit=ten", 400),
        ("/nothing", 404),
    ],
)
def test_an_error_is_one_json_document(ask: Ask, path: str, status: int) -> None:
    found = ask(path)
    assert found.status == status
    assert found.json.keys() >= {"error", "message", "hint"}


def test_answers_do_not_reveal_the_location_of_the_store(written: FlightsApp, ask: Ask) -> None:
    assert written.store.url.encode() not in ask("/apps/flihgts").body


def test_routes_return_the_librarys_results_as_json(written: FlightsApp, ask: Ask) -> None:
    with client_of(written) as client:
        app = client.app("flights")
        assert ask("/apps").json == {"apps": ["flights"]}
        assert ask("/apps/flights/log", limit="3").body == encode_json(shown.log_result(app.log(3), "flights").data)
        assert ask("/apps/flights/snapshots").body == encode_json(app.snapshot_listing().data)
        found = app.diff("~3", "now", table="carriers")
        expected = encode_json(shown.diff_result(found.refs, found.cuts, found.full_diffs).data)
        assert ask("/apps/flights/diff", before="~3", table="carriers").body == expected
        changes = ask("/apps/flights/tables/carriers/history", key="C1").json["changes"]
        assert [each["version"] for each in changes] == [each.version for each in app.history("carriers", "C1")]
        assert ask("/apps/flights/lineage", stage="carriers").json["sources"] == [
            {name: getattr(each, name) for name in ("topic", "partition", "start", "end")}
            for each in app.lineage("carriers").sources
        ]
        assert {each["table"] for each in ask("/apps/flights").json["tables"]} == {"aircraft", "carriers"}


def test_min_offsets_lets_a_producer_read_the_effect_of_its_record(app: FlightsApp, own: Callable[..., Ask]) -> None:
    ask = own()
    before = ask(CARRIERS, key="C1").json["rows"][0]["flights"]
    app.send(Flight("N001", "C1", 5))
    partition, offset = next(
        (number, len(log) - 1)
        for number, log in enumerate(app.kafka.topics["flights"])
        if len(log) > app.heads["legs"].inputs["flights"].offsets[number]
    )
    wanted = f"flights:{partition}:{offset}"
    early = ask(CARRIERS, key="C1", min_offsets=wanted, wait_ms="50")
    assert early.status == 409
    assert early.json["offsets"]["flights"][partition] == offset
    found: list[int] = []

    def wait() -> None:
        found.append(ask(CARRIERS, key="C1", min_offsets=wanted).json["rows"][0]["flights"])

    waits = threading.Thread(target=wait)
    waits.start()
    app.step("legs")  # the record is not in `carriers` yet
    app.step("aircraft")
    app.step("carriers")
    waits.join()
    assert found == [before + 1]


def test_min_offsets_of_a_topic_that_is_not_read_are_an_error(ask: Ask) -> None:
    assert ask(CARRIERS, key="C1", min_offsets="fligths:0:1").status == 404
    assert ask(CARRIERS, key="C1", min_offsets="flights:0").status == 400


def test_commits_are_streamed_as_they_happen(app: FlightsApp, own: Callable[..., Ask]) -> None:
    ask = own()
    events = urllib3.PoolManager().request("GET", f"{ask.url}/apps/flights/commits", preload_content=False, timeout=180)
    text = b""
    while b"\n\n" not in text:
        text += events.read1(4096)
    app.run(flights(1))
    while text.count(b"event: commit") < 2:
        text += events.read1(4096)
    events.close()
    last = msgspec.json.decode(text.rpartition(b"event: commit")[2].partition(b"data: ")[2].split(b"\n")[0])
    assert last["versions"]["legs"] == app.heads["legs"].version


def test_a_collected_moment_is_gone_and_the_error_names_the_remaining_history(
    app: FlightsApp, own: Callable[..., Ask]
) -> None:
    ask = own()
    assert ask("/apps/flights/at/v2/tables/carriers", key="C1").status == 200
    horizon.finalise(app.store, "flights", Boundary(1, final=True, first=dict.fromkeys(STAGES, 4)))
    for stage in STAGES:
        for version in range(1, 4):
            app.store.delete(keys.manifest("flights", stage, version))
    found = own(cache="another")("/apps/flights/at/v2/tables/carriers", key="C1")
    assert (found.status, found.json["error"]) == (410, "MomentGone")
    assert "there are v4 to" in found.json["message"]
    assert own(cache="third")("/apps/flights/at/v999/tables/carriers", key="C1").status == 404


def test_forgotten_keys_disappear_from_all_answers(
    app: FlightsApp, own: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.serve.service._MOMENT_CACHE_S", 0.0)
    ask, then = own(), "/apps/flights/at/v4/tables/carriers"
    assert ask(then, key=["C1", "C2"]).json["rows"][0] is not None
    assert ask(CARRIERS, key="C1").json["rows"] != [None]
    with client_of(app) as client:
        client.app("flights").forget({"carriers": ["C1"]})
    eventually(lambda: ask(CARRIERS, key="C1").json["rows"] == [None], "the key is forgotten")
    first, second = ask(then, key=["C1", "C2"]).json["rows"]
    assert first is None
    assert second["carrier"] == "C2"


def test_keys_are_written_as_on_the_command_line(app: FlightsApp, own: Callable[..., Ask]) -> None:
    for carrier in (r"\N", "", "-5"):
        app.send(Flight("N1", carrier, 7))
    app.step_all()
    asked = own()
    found = asked(CARRIERS, key=[r"\N", r"\\N", "", "-5"]).json["rows"]
    assert [each and each["carrier"] for each in found] == [None, r"\N", "", "-5"]
    history = asked("/apps/flights/tables/carriers/history", key=r"\\N").json
    assert [change["after"]["flights"] for change in history["changes"]] == [1]
    with Server(asked.url) as server:
        at = server.app("flights").at()
        assert at.get("carriers", r"\N") == found[1]
        assert at.get("carriers", None) is None
