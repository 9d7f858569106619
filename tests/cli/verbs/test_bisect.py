"""`slackwater bisect`: the printed commands work, and agree with the verdict."""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from deltalake import DeltaTable
from msgspec.structs import replace
from slackwater.client.show.document import TableBlock
from slackwater.client.show.verdict import lineage_blocks
from slackwater.pipeline.publish.tables.lookup import sink_id
from slackwater.pipeline.publish.tables.open import open_table
from slackwater.pipeline.publish.tables.protocol import Mark
from slackwater.settings import Settings
from slackwater.snapshot.cut.lineage import Lineage, Window
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions.apps import find_app
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Sink

from tests.cli.verbs.calling import BAD, BROKEN, done, from_json, slackwater
from tests.support.histories import Clock, Flight, FlightsApp, Kafka, copied, flights

pytestmark = pytest.mark.usefixtures("isolated")


APART = "SELECT c.flights FROM carriers c, aircraft a WHERE c.flights >= 7 AND a.tail = 'N0' AND a.flights >= 5"
"""Condition that becomes true when two tables have each reached a value, in either order."""


@pytest.fixture(scope="module")
def written_skewed(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app whose three stages have read to different points; the clock of the last stage is slow."""
    store = open_store(str(tmp_path_factory.mktemp("skewed") / "store"))
    app = FlightsApp(store, Kafka(), clock=Clock(skew_ms={"carriers": -2_500, "legs": 400}))
    for number in range(10):
        app.send(Flight("N0", "C0", 1))
        app.step("legs")
        if number % 2:
            app.step("aircraft", max_versions=3)
        if number % 3 == 0:
            app.step("carriers", max_versions=2)
    for _ in range(4):
        app.step("aircraft")
        app.step("carriers")
    return app


@pytest.fixture
def skewed(written_skewed: FlightsApp, store: ObjectStore) -> FlightsApp:
    return copied(written_skewed, store)


@pytest.mark.usefixtures("app")
def test_bisect_names_the_commit_its_input_and_the_bad_keys() -> None:
    verdict = from_json("bisect", "flights", "--where", BAD)
    assert verdict["stage"] == "carriers"
    assert (verdict["last_good"]["ref"], verdict["first_bad"]["ref"]) == ("flights/aircraft@v6", "flights/carriers@v6")
    assert verdict["last_good"]["version"] == 5
    (window,) = verdict["source_windows"]
    assert (window["topic"], window["end"] - window["start"]) == ("flights", 1)
    (key,) = verdict["keys"]
    assert key["key"] == {"carrier": "C1"}
    assert key["after"]["delay"] - key["before"]["delay"] == BROKEN.delay


@pytest.mark.usefixtures("app")
def test_bisect_prints_the_verdict_and_the_next_commands() -> None:
    result = slackwater("bisect", "flights", "--where", BAD)
    assert result.exit_code == 0
    assert result.stdout.startswith("carriers v6 is the first bad commit of flights\n")
    assert "\nlast good" in result.stdout
    assert "flights-by-carrier-repartition[" in result.stdout
    assert f"slackwater query flights/aircraft@v6 '{BAD}'" in result.stdout
    assert "slackwater clone flights/aircraft@v6 flights-staging" in result.stdout
    assert "good" in result.stderr.splitlines()[1]


@pytest.mark.parametrize(
    ("direct", "sources", "said"),
    [
        pytest.param(
            (Window("a", 0, 3, 5),), (Window("a", 0, 3, 5),), ["input of this commit"], id="a topic of the user's"
        ),
        pytest.param(
            (Window("c", 0, 3, 5),), (Window("a", 1, 0, 9),), ["input of this commit", "", "which came from"], id="both"
        ),
        pytest.param((), (), ["it read no records"], id="nothing: rows fell due"),
        pytest.param(
            (Window("c", 0, 3, 5),),
            (),
            [
                "input of this commit",
                "",
                "no record is behind these: rows fell due, windows ended, or rejected records were retried",
            ],
            id="what a batch without records sent",
        ),
    ],
)
def test_the_input_of_a_commit_is_shown_as_a_table_or_a_sentence(
    direct: tuple[Window, ...], sources: tuple[Window, ...], said: list[str]
) -> None:
    parts = list(lineage_blocks(Lineage("s", direct, sources)))
    assert [part.headings[0] if isinstance(part, TableBlock) else part for part in parts] == said


@pytest.mark.usefixtures("app")
def test_a_predicate_that_never_fails_is_refused() -> None:
    result = slackwater("bisect", "flights", "--where", "SELECT 1 FROM carriers WHERE flights < 0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing is wrong there" in result.stderr


@pytest.mark.usefixtures("skewed")
def test_the_command_printed_for_a_query_over_two_tables_returns_the_printed_rows() -> None:
    result = slackwater("bisect", "flights", "--where", APART)
    good, bad, clone = (shlex.split(line) for line in result.stdout.splitlines()[-3:])
    assert [good[1], bad[1], clone[1]] == ["query", "query", "clone"]
    assert good[2] == clone[2]
    assert from_json(*good[1:])["rows"] == []
    assert from_json(*bad[1:])["rows"] != []
    probes = [line.split("  ")[-1].split(": ") for line in result.stderr.splitlines() if "/" in line]
    assert len(probes) > 4
    for ref, verdict in probes:
        assert bool(from_json("query", ref, APART)["rows"]) == (verdict == "bad")
    # The log shows the line: the commit of the good moment is right below the commit of the bad moment.
    logged = [f"flights/{entry['stage']}@v{entry['version']}" for entry in from_json("log", "flights", "--limit", "99")]
    assert logged[logged.index(bad[2]) + 1] == good[2]


@pytest.mark.usefixtures("skewed")
def test_the_named_commit_is_the_first_of_the_log_at_which_the_query_returns_rows() -> None:
    verdict = from_json("bisect", "flights", "--where", APART)
    logged = [f"flights/{entry['stage']}@v{entry['version']}" for entry in from_json("log", "flights", "--limit", "99")]
    found = {ref: from_json("query", ref, APART) for ref in logged}
    is_bad = [bool(found[ref]["rows"]) for ref in reversed(logged)]
    first = is_bad.index(True)
    assert not any(is_bad[:first])
    assert all(is_bad[first:])
    assert (verdict["last_good"]["ref"], verdict["first_bad"]["ref"]) == (logged[-first], logged[-first - 1])
    for step in verdict["steps"]:
        answer = found.get(step["ref"]) or from_json("query", step["ref"], APART)
        assert (answer["versions"], bool(answer["rows"])) == (step["cut"], step["bad"])


def test_json_has_all_bad_keys_and_text_the_first_ten(store: ObjectStore, tmp_path: Path) -> None:
    app = FlightsApp(store, Kafka())
    app.run(flights(14, delay=50))
    tails = [f"N00{n}" for n in range(3)] + [f"M{n:02}" for n in range(11)]
    app.send(*(Flight(tail, "C1", 5_000 + n) for n, tail in enumerate(tails)))
    app.step_all()
    where = ("bisect", "flights", "--where", "SELECT tail FROM aircraft WHERE delay > 1000 ORDER BY delay")
    in_order = [*tails[3:], *tails[:3]]  # the first three had delays before
    text = done(*where)
    assert "and 4 more; --json and --out FILE give all" in text
    assert [tail in text for tail in in_order] == [True] * 10 + [False] * 4
    verdict = from_json(*where)
    assert [key["key"]["tail"] for key in verdict["keys"]] == in_order
    assert verdict["keys_named"]
    text = done(*where, "--out", "keys.parquet")
    assert "and 4 more; all are in keys.parquet" in text
    written = pq.read_table(tmp_path / "keys.parquet").to_pylist()
    assert [row["tail"] for row in written] == in_order
    assert {(row["tail"], row["change"], row["after_delay"]) for row in written} == {
        (key["key"]["tail"], "changed" if key["before"] else "added", key["after"]["delay"]) for key in verdict["keys"]
    }
    for name in ("keys.csv", "keys.json"):
        assert from_json(*where, "--out", name)["file"] == name
        assert all(tail in (tmp_path / name).read_text() for tail in in_order)


def test_bisect_names_the_snapshot_of_a_table_to_which_the_bad_version_was_published(
    store: ObjectStore, tmp_path: Path
) -> None:
    app = FlightsApp(store, Kafka())
    app.run(flights(14))
    head, address = app.heads["aircraft"], str(tmp_path / "lake")
    sinks = {"counts": Sink("out", 0, head.version + 1, "table", id="first", table=f"delta:{address}")}
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms + 1)
    app.commit(replace(draft, sinks=sinks))
    app.send(Flight("planted", "C1", 5_000))
    app.step_all()
    info = find_app(store, app.name)
    owner, table = (
        sink_id(app.name, info.created_ms if info else 0, "aircraft", "counts"),
        open_table(sw.delta(address), address),
    )
    table.load(owner, "first")
    words = ("bisect", "flights", "--where", "SELECT tail FROM aircraft WHERE delay > 1000")
    assert "delta:" in (noted := slackwater(*words).stderr)
    assert "no snapshot of it can be read" in noted
    for version in range(head.version + 2, app.heads["aircraft"].version + 1):
        table.publish(Mark(owner, "first", version), pa.table({"version": [version]}))
    verdict = from_json(*words)
    bad = verdict["first_bad"]["version"]
    (there,) = verdict["tables"]
    assert (there["sink"], there["table"], there["version"]) == ("counts", f"delta:{address}", bad)
    versions = DeltaTable(address, version=int(there["snapshot"])).to_pyarrow_table()["version"].to_pylist()
    assert max(versions) == bad
    assert f"publishes v{bad} to delta:{address}: snapshot {there['snapshot']}" in slackwater(*words).stderr


def test_if_the_query_returns_no_keys_bisect_shows_the_keys_that_the_commit_changed(store: ObjectStore) -> None:
    app = FlightsApp(store, Kafka())
    app.run(flights(14))
    app.send(Flight("planted", "C1", 5_000), *flights(14))
    app.step_all()
    words = ("bisect", "flights", "--where", "SELECT 1 FROM aircraft HAVING max(delay) > 1000")
    text = done(*words)
    assert "the query returns no key of this table; keys that this commit changed:" in text
    assert "planted" in text
    verdict = from_json(*words)
    assert not verdict["keys_named"]
    assert [key["key"]["tail"] for key in verdict["keys"]] == sorted(key["key"]["tail"] for key in verdict["keys"])
    assert len(verdict["keys"]) == 8


def test_a_stage_without_a_table_has_no_keys_to_export(
    skewed: FlightsApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "open_channels", lambda _settings: skewed.kafka)
    for _ in range(2):
        skewed.send(*flights(6, delay=99))
        skewed.step("legs")
    result = slackwater(
        "bisect", "flights", "--where", "FROM inflight('by-aircraft') WHERE delay = 99", "--out", "keys.csv"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("legs v")
    assert "legs has no table, so no key turned bad" in result.stderr
    assert not (tmp_path / "keys.csv").exists()


def test_an_out_file_without_a_known_format_is_refused_before_the_search(skewed: FlightsApp) -> None:
    result = slackwater("bisect", skewed.name, "--where", APART, "--out", "keys.txt")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--out keys.txt has no supported format" in result.stderr


def test_a_table_that_did_not_exist_yet_is_queried_as_empty_with_a_note(store: ObjectStore) -> None:
    app = FlightsApp(store, Kafka(), start=["legs", "aircraft"])
    app.send(*flights(7))
    app.step("legs")
    app.step("aircraft")
    app.claim("carriers")
    app.step("carriers")
    result = slackwater("query", "flights/aircraft@v2", "FROM carriers")
    assert result.exit_code == 0
    assert "carriers had no version yet at flights/aircraft@v2" in result.stderr
    assert from_json("query", "flights/aircraft@v2", "FROM carriers")["rows"] == []
    assert slackwater("query", "flights/aircraft@v2", "FROM carrierz").exit_code == 1
