"""Queries for expected differences: invalid ones are refused before the comparison."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import NotFound, SlackwaterError, Usage
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.diff.moments import (
    StoredCut,
    TableDiff,
    check_expected_queries,
    diff,
    without_all_expected,
    without_expected,
)
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.manifest import Column

from tests.support.stages import TABLE, Stage

TABLES = {"streets": TABLE, "towns": replace(TABLE, key=(Column("Town", "string"),)), "new": None}


@pytest.fixture
def found(tmp_path: Path) -> TableDiff:
    """Return a difference of two tables with keys from 1 to 5: 2 changed, 3 removed, 5 added."""
    stage = Stage()
    before = stage.put({(number,): (number, "w") for number in range(1, 5)})
    after = stage.put({(2,): (0, "w"), (3,): None, (5,): (5, "w")})
    sides = (StoredCut(stage.store, Cut("app", {"stage": each})) for each in (before, after))
    (found,) = diff(SstCache(tmp_path, 0), *sides)
    return found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM stage", []),
        ("SELECT k FROM Stage WHERE change = 'changed' AND after_v = 0", [3, 5]),
        ("WITH few AS (FROM stage) SELECT * FROM few WHERE before_v IS NULL", [2, 3]),
        ("FROM other", [2, 3, 5]),
        # A word in it is not a table that it is over.
        ("SELECT 'stage' AS k FROM other", [2, 3, 5]),
    ],
)
def test_the_returned_keys_are_left_out_if_the_query_is_over_this_table(
    found: TableDiff, sql: str, expected: list[int]
) -> None:
    left = without_expected(found, sql)
    assert left.changes.keys["k"].to_pylist() == expected
    assert left.added + left.removed + left.changed == len(expected)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM streets",
        "SELECT k FROM STREETS WHERE change = 'added' OR before_v < after_v",
        'SELECT "Town" FROM towns JOIN (SELECT 1) ON after_w = before_w',
        # Whose columns nobody knows yet.
        "SELECT whatever FROM new WHERE after_whatever > 1",
    ],
)
def test_a_query_that_may_be_right_is_accepted(sql: str) -> None:
    check_expected_queries([sql], TABLES)


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("SELEKT nonsense", Usage, "syntax error"),
        ("SELEKT new", Usage, "syntax error"),
        ("", Usage, "expected one SQL statement, found 0"),
        ("FROM streets; FROM towns", Usage, "expected one SQL statement, found 2"),
        ("DROP TABLE streets", Usage, "this is a DROP statement"),
        ("DROP TABLE new", Usage, "this is a DROP statement"),
        ("FROM strets", Usage, "one table, of streets, towns, new; this one reads none of them"),
        ("SELECT 1", Usage, "one table, of streets, towns, new; this one reads none of them"),
        ("SELECT k FROM streets JOIN towns ON true", Usage, "this one reads streets and towns"),
        ("FROM streets JOIN elsewhere ON true", NotFound, "no table named 'elsewhere'"),
        ("FROM streets WHERE after_x = 1", NotFound, "no column named 'after_x'"),
        ("SELECT change FROM streets", Usage, "must return its key: k is not among the columns"),
        (
            "SELECT k FROM streets JOIN read_csv('/etc/passwd') ON true",
            SlackwaterError,
            "disabled|not permitted|denied",
        ),
    ],
)
def test_a_wrong_query_is_refused_before_there_are_differences(
    sql: str, error: type[SlackwaterError], words: str
) -> None:
    with pytest.raises(error, match=words) as told:
        check_expected_queries(["FROM streets", sql], TABLES)
    # A trial has no file for rows.
    assert "--out" not in told.value.hint


def test_a_column_that_the_differences_lack_is_reported_after_the_comparison(found: TableDiff) -> None:
    with pytest.raises(NotFound, match="no column named 'after_x'"):
        without_expected(found, "FROM stage WHERE after_x = 1")
    with pytest.raises(Usage, match="must return its key: k"):
        without_expected(found, "SELECT change FROM stage")


def test_an_invalid_query_does_not_disable_the_others(found: TableDiff) -> None:
    (left,), wrong = without_all_expected(
        (found,), ["SELECT k FROM stage WHERE k = 2", "FROM stage WHERE after_x = 1", "SELECT k FROM stage WHERE k = 5"]
    )
    assert left.changes.keys["k"].to_pylist() == [3]
    (told,) = wrong
    assert told.startswith("no column named 'after_x'; the nearest: ")
    assert told.endswith("(FROM stage WHERE after_x = 1)")
