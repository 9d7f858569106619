"""`why`, `impact` and `repair` as typed, and the same from Python."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
from slackwater.testing import run

from tests.cli.verbs.calling import from_json, slackwater

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("shop")


@app.stage(reads=sw.topic("orders"), key="country", state=sw.aggregate(orders=sw.count(), most=sw.max("cents")))
def countries(raw):
    schema = "country string, cents long"
    return raw.select(F.from_json(F.col("value").cast("string"), schema).alias("r")).select("r.*")
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an app that has run twice. The verbs find its store and Kafka by the environment."""
    file = tmp_path / "shop.py"
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("shop", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    orders = [{"country": "DE", "cents": 7}, {"country": "FR", "cents": 5}]
    done = run(module.app, {"orders": orders})
    done = run(module.app, {"orders": [{"country": "DE", "cents": 3}]}, after=done)
    client = done.app._client
    monkeypatch.chdir(tmp_path)
    for name, value in (("STORE", client.root), ("KAFKA", done.kafka.address), ("CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(f"SLACKWATER_{name}", value)
    return done


def test_why_names_the_records_of_a_row_at_a_moment(ran: Any) -> None:
    newest = from_json("why", "shop/countries", "DE", "--code", "shop.py", "--minimal", "--payloads")
    assert newest["row"] == {"orders": 2, "most": 7}
    assert newest["whole"]
    assert [each["record"] for each in newest["records"]] == ["orders[0]@0", "orders[0]@2"]
    assert bytes.fromhex(newest["records"][0]["value"]) == b'{"country": "DE", "cents": 7}'
    assert newest["minimal"]["records"] == ["orders[0]@0", "orders[0]@2"]
    assert newest["minimal"]["smallest"]
    version = newest["versions"][-1]["version"]
    first = from_json("why", f"shop/countries@v{version}", "DE", "--code", "shop.py")
    assert [each["record"] for each in first["records"]] == ["orders[0]@0"]
    assert first["row"] == {"orders": 1, "most": 7}
    nothing = from_json("why", "shop/countries", "IT", "--code", "shop.py")
    assert (nothing["row"], nothing["records"], nothing["versions"]) == (None, [], [])
    explained = ran.app.why("countries", "DE", f"v{version}", code="shop.py")
    assert explained.row == first["row"]
    assert [str(each.location) for each in explained.records] == ["orders[0]@0"]
    assert not explained.unknown
    assert "1 record wrote its row" in repr(explained)


def test_impact_names_what_a_record_reached(ran: Any) -> None:
    ran.app.clone("shop-copy")
    reached = from_json("impact", "shop", "orders[0]@1", "--code", "shop.py")
    assert [(each["stage"], each["key"], each["until"]) for each in reached["rows"]] == [
        ("countries", {"country": "FR"}, None)
    ]
    assert [(each["kind"], each["name"]) for each in reached["copies"]] == [("clone", "shop-copy")]
    assert reached["unknown"] == []
    result = ran.app.impact("orders[0]@1", code="shop.py")
    assert [row.key for row in result.rows] == [{"country": "FR"}]
    assert "it reached 1 row" in repr(result)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("impact", "shop", "orders 1"), 2, "is not the location of a record"),
        (("impact", "shop", "payments[0]@1"), 1, "payments"),
        (("why", "shop/nothing", "DE"), 1, "nothing"),
        (("why", "shop/countries", "DE", "x"), 2, "the key of table 'countries'"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_next_step(
    ran: Any, words: tuple[str, ...], code: int, message: str
) -> None:
    refused = slackwater(*words, "--code", "shop.py")
    assert (refused.exit_code, refused.stdout) == (code, ""), refused.output
    assert message in refused.stderr
    without = slackwater(*(word for word in ("why", "shop/countries", "DE")))
    assert "no program given" in without.stderr
    with sw.open() as client, pytest.raises(sw.errors.Usage):
        client.app("shop").impact("orders[0]")


def test_repair_takes_a_record_out_and_an_undo_brings_it_back(ran: Any) -> None:
    dropped = ("repair", "shop", "--drop", "orders[0]@0", "--code", "shop.py")
    planned = from_json(*dropped, "--dry-run")
    change = {"key": {"country": "DE"}, "change": "changed"}
    rows = {"before": {"orders": 2, "most": 7}, "after": {"orders": 1, "most": 3}}
    assert planned["changes"] == {"countries": [change | rows]}
    assert ran.app.at().get("countries", "DE")["orders"] == 2
    said = slackwater(*dropped, "--message", "sent twice")
    assert said.exit_code == 0, said.output
    assert "drop orders[0]@0: changed 1 row of shop" in said.output
    assert "to undo it: slackwater repair shop --undo" in said.output
    assert ran.app.at().get("countries", "DE") == {"country": "DE", "orders": 1, "most": 3}
    assert "done already" in slackwater(*dropped).output
    (noted,) = from_json("log", "shop", "--operations", "--verb", "repair")
    assert (noted["message"], [*noted["after"]]) == ("sent twice", ["countries"])
    newest = from_json("history", "shop/countries", "DE")
    assert newest["changes"][0]["after"] == rows["after"]
    assert ran.app.repair(undo=True, code="shop.py").data["undone"]
    assert ran.app.at().get("countries", "DE") == {"country": "DE", "orders": 2, "most": 7}
    Path("other.json").write_text('{"country": "IT", "cents": 9}')
    replaced = ("repair", "shop", "--replace", "orders[0]@1=other.json", "--code", "shop.py")
    assert from_json(*replaced)["replaced"].keys() == {"orders[0]@1"}
    assert ran.app.at().get("countries", "FR") is None
    assert ran.app.at().get("countries", "IT") == {"country": "IT", "orders": 1, "most": 9}
    for words in ((), ("--drop", "orders[0]@0", "--undo"), ("--drop", "orders")):
        assert slackwater("repair", "shop", *words, "--code", "shop.py").exit_code == 2
