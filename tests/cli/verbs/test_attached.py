"""Verbs on an app that follows a Spark query."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.operations.attach.following import START_MS, caught_up, commit, query, tail
from tests.operations.attach.memory_checkpoint import MemoryCheckpoint, Row

pytestmark = pytest.mark.usefixtures("isolated")

BROKE = 7
"""First batch with wrong cents. They are in the third version of all but one of these batches."""
WRONG = "SELECT country FROM totals WHERE cents > 1e6"
SEEN_TWICE = "SELECT id FROM totals_seen WHERE id = 700"


def a_query(batches: int, checkpoint: MemoryCheckpoint | None = None) -> MemoryCheckpoint:
    checkpoint = checkpoint or query()
    for number in range(len(checkpoint.batches), len(checkpoint.batches) + batches):
        totals: dict[Row, Row | None] = {
            ("DE",): (number, 1e9 if number >= BROKE else 10.0 * number),
            (f"c{number}",): (1, 1.0),
            (f"c{number - 3}",): None,
        }
        commit(checkpoint, {"": totals, "Seen": {(100 * number, None): ()}})
    return checkpoint


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def checkpoint(store: ObjectStore, tmp_path: Path) -> MemoryCheckpoint:
    """Return a checkpoint of ten batches. Two were deleted before the attach, two more before the last four came."""
    checkpoint, cache = a_query(4), SstCache(tmp_path / "cache", 1 << 30)
    checkpoint.clean_up(before=2)
    following = tail(store, cache, checkpoint)
    caught_up(following)
    a_query(6, checkpoint)
    checkpoint.clean_up(before=6)
    caught_up(following)
    return checkpoint


def test_every_verb_works_on_an_attached_app(checkpoint: MemoryCheckpoint, store: ObjectStore, tmp_path: Path) -> None:
    assert "totals" in done("status", "shop")
    (stage,) = from_json("status", "shop")[0]["stages"]
    assert stage["attached"]["next_batch"] == 10

    log = done("log", "shop")
    assert "batches 0 to 2" in log
    assert "batches 4 to 6" in log
    assert "batch 9: orders[0] 90..100, [1] 8..9" in log
    (operation,) = from_json("log", "shop", "--operations")
    assert operation["verb"] == "attach"

    def germany(ref: str) -> object:
        return rows_of(ref, "SELECT orders, cents FROM totals WHERE country = 'DE'")[0]

    assert germany("shop") == {"orders": 9, "cents": 1e9}
    assert germany("shop/totals@v3") == {"orders": 3, "cents": 30.0}
    assert rows_of("shop", "SELECT count(*) AS n FROM totals_seen") == [{"n": 10}]
    assert from_json("get", "shop/totals", "DE")["row"] == {"country": "DE", "orders": 9, "cents": 1e9}
    assert from_json("get", "shop/totals_seen", "900", r"\N")["row"] == {"id": 900, "day": None}

    differs = json.loads(slackwater("diff", "shop/totals@v3", "shop", "--json").stdout)
    assert {each["table"]: (each["added"], each["removed"], each["changed"]) for each in differs["tables"]} == {
        "totals": (3, 3, 1)
    }
    changes = from_json("history", "shop/totals", "DE")["changes"]
    assert [each["after"]["orders"] for each in changes] == [9, 8, 7, 6, 3, 2]
    assert "orders[0] 70..80" in done("history", "shop/totals", "DE")
    assert len(from_json("history", "shop/totals_seen", "700", r"\N")["changes"]) == 1

    found = from_json("bisect", "shop", "--where", WRONG)
    assert (found["stage"], found["first_bad"]["version"]) == ("totals", 5)
    said = done("bisect", "shop", "--where", WRONG)
    assert "batch 7" in said
    assert "orders[0] 70..80" in said
    beside = from_json("bisect", "shop", "--where", SEEN_TWICE)
    assert (beside["first_bad"]["version"], beside["keys"][0]["key"]) == (5, {"id": 700, "day": None})

    (tmp_path / "slackwater.toml").write_text(f'[invariants.sane]\nwhere = "{WRONG}"\n', encoding="utf-8")
    failed = slackwater("watch", "shop", "--once")
    assert failed.exit_code == 1
    assert "totals v5 broke sane" in failed.stdout

    done("snapshot", "take", "shop", "before")
    assert germany("shop@before") == {"orders": 9, "cents": 1e9}
    assert "totals_seen" in done("export", "shop@before", str(tmp_path / "shop.duckdb"))
    done("export", "shop@before", str(tmp_path / "folder"))

    done("compact", "shop", "--full")
    done("gc", "shop", "--versions", "2")
    assert "consistent" in done("verify", "shop", "--deep")
    assert germany("shop@before") == {"orders": 9, "cents": 1e9}


def test_a_clone_needs_no_kafka_and_can_follow_the_query_itself(
    checkpoint: MemoryCheckpoint, store: ObjectStore, tmp_path: Path
) -> None:
    assert "slackwater attach memory:checkpoint --app staging" in done("clone", "shop/totals@v3", "staging")
    assert rows_of("staging", "SELECT orders FROM totals WHERE country = 'DE'") == [{"orders": 3}]
    done("clone", "shop", "anew")
    done("clone", "refresh", "anew", "--dry-run")
    for app in ("staging", "anew"):
        following = tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint)
        following.app = app
        caught_up(following)
        everything = "SELECT * FROM totals ORDER BY country"
        assert rows_of(app, everything) == rows_of("shop", everything)
        assert "consistent" in done("verify", app, "--deep")


def test_a_key_can_be_forgotten_in_any_table_but_the_query_may_restore_it(
    checkpoint: MemoryCheckpoint, store: ObjectStore, tmp_path: Path
) -> None:
    key, seen = ("--key", "totals_seen=[700, null]"), "SELECT count(*) AS n FROM totals_seen WHERE id = 700"
    told = done("forget", "shop", *key, "--dry-run")
    assert "totals_seen" in told
    assert "totals " not in told.replace("totals_seen", "")
    assert "the checkpoint memory:checkpoint: a batch of the query that changes the key brings it back" in told
    before = rows_of("shop", "SELECT * FROM totals ORDER BY country")
    done("forget", "shop", *key)
    assert rows_of("shop", seen) == rows_of("shop/totals@v5", seen) == [{"n": 0}]
    assert rows_of("shop", "SELECT count(*) AS n FROM totals_seen") == [{"n": 9}]
    assert rows_of("shop", "SELECT * FROM totals ORDER BY country") == before
    assert "no object of shop holds" in done("verify", "shop", "--forgotten", *key, "--deep")
    assert "consistent" in done("verify", "shop", "--deep")

    # A text in another table's rows does not count as a key of that table.
    done("forget", "shop", "--key", "totals=DE")
    assert slackwater("get", "shop/totals", "DE").exit_code == 1
    assert rows_of("shop", "SELECT count(*) AS n FROM totals_seen") == [{"n": 9}]

    commit(checkpoint, {"Seen": {(700, None): ()}})
    caught_up(tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint))
    assert rows_of("shop", seen) == [{"n": 1}]
    unknown = slackwater("forget", "shop", "--key", "totals_nothing=1")
    assert "totals_seen" in unknown.output


def test_file_offsets_are_not_counted_as_records_and_no_replay_is_suggested(store: ObjectStore, tmp_path: Path) -> None:
    checkpoint = a_query(10)
    checkpoint.batches = [replace(each, non_kafka=frozenset(each.offsets)) for each in checkpoint.batches]
    caught_up(tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint))
    assert {each["rows_in"] for each in from_json("log", "shop") if each["kind"] == "batch"} == {None}
    assert from_json("status", "shop")[0]["stages"][0]["rows"] is None
    assert "≤" not in done("log", "shop").partition("read")[2]
    (line,) = (each for each in done("log", "shop").splitlines() if "batch 9: orders[0] 90..100" in each)
    assert line.split("batch")[1].split()[0] == "-", line
    found = slackwater("bisect", "shop", "--where", WRONG)
    assert "not replayed: the query reads no Kafka topic (orders); look in its source" in found.output
    assert "--code" not in found.output
    assert "--kafka" not in found.output
    Path("orders.py").write_text("def orders(messages):\n    return messages\n")
    given = slackwater("bisect", "shop", "--where", WRONG, "--code", "orders.py:orders")
    assert "reads no Kafka topic (orders)" in given.output
    assert "--kafka" not in given.output


def test_following_continues_after_a_merge(checkpoint: MemoryCheckpoint, store: ObjectStore, tmp_path: Path) -> None:
    done("compact", "shop", "--full")
    a_query(2, checkpoint)
    caught_up(tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint))
    assert from_json("get", "shop/totals", "DE")["row"]["orders"] == 11
    assert "consistent" in done("verify", "shop", "--deep")


def test_a_verb_that_needs_a_program_is_refused_with_a_hint(checkpoint: MemoryCheckpoint) -> None:
    edited = slackwater("edit", "shop/totals", "--sql", "DELETE FROM totals")
    assert edited.exit_code == 1
    assert "slackwater adopt" in edited.output


def test_a_time_between_two_batches_gives_the_earlier_batch(checkpoint: MemoryCheckpoint) -> None:
    commits = json.loads(done("log", "shop", "--json"))
    assert commits[0]["time_ms"] == START_MS + 9_000
    then = "2023-11-14T22:13:28.500Z"
    assert rows_of(f"shop@{then}", "SELECT orders FROM totals WHERE country = 'DE'") == [{"orders": 8}]
