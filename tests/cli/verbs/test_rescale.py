"""`slackwater rescale` on the command line."""

import pytest
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("words", ["flights", "flights/"])
def test_rescale_without_a_stage_says_that_the_stage_is_missing(words: str) -> None:
    result = slackwater("rescale", words, "--partitions", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{words}' names no stage; expected APP/STAGE" in result.stderr
    assert "`slackwater status flights`" in result.stderr


@pytest.mark.usefixtures("app")
def test_rescale_changes_the_number_of_partitions_and_no_query_result() -> None:
    before = rows_of("flights", "FROM carriers")
    assert done("rescale", "flights/carriers", "--partitions", "5").splitlines() == [
        "rescaled flights/carriers from 2 to 5 state partitions with v7; 9 SSTs kept as they are",
        "a running stage stops now; to continue: slackwater run FILE",
    ]
    assert sorted(rows_of("flights", "FROM carriers"), key=str) == sorted(before, key=str)
    assert from_json("log", "flights", "--stage", "carriers")[0]["kind"] == "rescale"
    (operation,) = from_json("log", "flights", "--operations")
    assert (operation["verb"], operation["detail"]) == ("rescale", "carriers to 5 state partitions, from 2")


@pytest.mark.usefixtures("app")
def test_rescale_to_the_current_number_succeeds_without_a_change() -> None:
    assert done("rescale", "flights/carriers", "--partitions", "2") == (
        "done already: flights/carriers has 2 state partitions\n"
    )
    assert from_json("log", "flights", "--operations") == []


@pytest.mark.usefixtures("app")
def test_a_dry_run_of_a_rescale_changes_nothing(store: ObjectStore) -> None:
    before = [info.key for info in store.list("")]
    said = done("rescale", "flights/carriers", "--partitions", "1", "--dry-run")
    would = "would rescale flights/carriers from 2 to 1 state partition with v7\n"
    assert said == f"{would}nothing was changed (--dry-run)\n"
    found = from_json("rescale", "flights/carriers", "--partitions", "1", "--dry-run")
    assert (found["version"], found["before"], found["partitions"], found["dry_run"]) == (7, 2, 1, True)
    assert [info.key for info in store.list("")] == before


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("stage", "partitions", "code", "expected"),
    [
        ("flight/carriers", "3", 1, "flights"),
        ("flights/carrier", "3", 1, "carriers"),
        ("flights/legs", "3", 1, "has no table"),
        ("flights", "3", 2, "slackwater status flights"),
        ("flights/carriers", "0", 2, "--partitions"),
        ("flights/carriers", "65537", 2, "1 to 65536"),
    ],
)
def test_an_impossible_rescale_is_explained(stage: str, partitions: str, code: int, expected: str) -> None:
    result = slackwater("rescale", stage, "--partitions", partitions)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr
