"""`slackwater get` on the command line."""

import json

import pytest

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
def test_get_prints_one_row_and_what_it_read() -> None:
    found = from_json("get", "flights/carriers", "C1")
    assert found["row"]["carrier"] == "C1"
    assert found["found"] is True
    assert 0 < found["read"]["bytes"] < found["read"]["table_bytes"]
    result = slackwater("get", "flights/carriers", "C1", "--verbose")
    assert result.stderr.startswith("read ")


@pytest.mark.usefixtures("app")
def test_get_of_a_missing_key_exits_with_1() -> None:
    result = slackwater("get", "flights/carriers", "ZZ")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no key ZZ" in result.stderr
    result = slackwater("get", "flights/carriers", "ZZ", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["row"] is None


@pytest.mark.usefixtures("app")
def test_get_with_too_many_values_is_a_usage_error_that_names_the_key_columns() -> None:
    result = slackwater("get", "flights/carriers", "C1", "C2")
    assert result.exit_code == 2
    assert "carrier (string)" in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("moment", "flights"), [("", 13), ("@now", 13), ("@~1", 12), ("@v2", 3), ("@before", 13), ("@-1s", 13)]
)
def test_get_reads_a_table_at_any_moment(moment: str, flights: int) -> None:
    done("snapshot", "take", "flights", "before", "--instant")
    assert from_json("get", f"flights/carriers{moment}", "C1")["row"]["flights"] == flights
    (row,) = rows_of(f"flights/carriers{moment}", "SELECT flights FROM carriers WHERE carrier = 'C1'")
    assert row["flights"] == flights
