"""`slackwater init` on a real broker and Spark: the app continues from the imported rows at the given offsets."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.errors import Refused
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import AppInfo
from typer.testing import CliRunner

from tests.support.running import DIAMOND, EXPECTED, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("isolated")]

DEBITS = EXPECTED[DIAMOND]["debits"]


@pytest.fixture
def diamond(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger(kafka.bootstrap, tmp_path, program=DIAMOND)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def init(diamond: Ledger, stage: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main.app, ["init", f"{diamond.app}/{stage}", *words, "--code", str(DIAMOND)])
    assert result.exit_code == code, (words, result.output)
    return result.stdout if code == 0 else result.stderr


def debits(diamond: Ledger) -> pa.Table:
    """Return the table as SQL over the raw input."""
    with duckdb.connect() as con:
        con.register("raw", diamond.raw())
        return con.sql(DEBITS).to_arrow_table()


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_the_first_run_continues_from_imported_rows(diamond: Ledger, tmp_path: Path) -> None:
    diamond.send(2_000)
    rows = tmp_path / "debits.parquet"
    expected = debits(diamond)
    pq.write_table(expected, rows)
    ends = diamond.kafka.offset_bounds(diamond.topic)[1]
    would = json.loads(init(diamond, "debits", str(rows), "--at", "-0s", "--dry-run", "--json"))
    assert (would["dry_run"], would["rows"]) == (True, expected.num_rows)
    assert would["starts"] == {diamond.topic: [*ends]}
    assert apps.find_app(open_store(diamond.store), diamond.app) is None
    at = json.dumps(dict(zip("012", ends, strict=True)))
    said = init(diamond, "debits", str(rows), "--offsets", f"{diamond.topic}={at}").splitlines()
    assert said[0].startswith(f"{diamond.app}/debits begins with v1: {expected.num_rows} rows in 3 SSTs, ")
    assert said[2] == (
        f"moves, deposits, branches begin without rows, at {diamond.topic}[0] {ends[0]}, [1] {ends[1]}, [2] {ends[2]}"
    )
    assert "done already" in init(diamond, "debits", str(rows))
    with sw.open() as client:
        again = client.init(f"{diamond.app}/debits", rows, code=DIAMOND, offsets={diamond.topic: ends})
    assert (again.already, again.rows) == (True, expected.num_rows)
    diamond.send(1_000)
    # What was the end when it began is another offset by now, and the same call is the same call.
    assert "done already" in init(diamond, "debits", str(rows), "--offsets", f"{diamond.topic}=latest")
    begin = json.dumps(dict.fromkeys("012", 0))
    elsewhere = init(diamond, "debits", str(rows), "--offsets", f"{diamond.topic}={begin}", code=1)
    assert f"app '{diamond.app}' already exists, with other start offsets" in elsewhere

    diamond.catch_up()
    assert "it already has versions, up to v" in init(diamond, "debits", str(rows), code=1)
    expected = debits(diamond)
    found = diamond.table("debits").select(expected.column_names)
    assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)
    # The stages behind and beside it have seen what came after the rows, and no more.
    branches = diamond.table("branches")
    assert sum(branches["debits"].to_pylist()) + sum(branches["credits"].to_pylist()) == 1_000
    diamond.verify(diamond.app)


def test_an_impossible_init_is_refused_before_spark_starts(diamond: Ledger) -> None:
    diamond.send(30)
    topic = diamond.topic
    for stage, words, code, said in (
        ("debits", ("--offsets", "legder=latest"), 1, f"no topic read by {diamond.app} named 'legder'"),
        ("debits", ("--offsets", "latest"), 2, "--offsets 'latest': expected TOPIC=WHERE or JSON by topic"),
        ("debits", ("--offsets", f'{topic}={{"0":0}}'), 1, "names the partitions 0; expected each of 0 to 2"),
        ("debits", ("--offsets", f'{{"{topic}":{{"0":99,"1":-2,"2":-1}}}}'), 1, "to begin at 99, but holds 0..10"),
        ("debits", ("--at", "yesterday"), 2, "--at 'yesterday' is not a time"),
        ("debit", (), 1, "the nearest: debits"),
        ("moves", (), 1, "has no table"),
        ("branches", ("--sql", "SELECT 1"), 2, "both a file and --sql"),
    ):
        assert said in init(diamond, stage, "rows.parquet", *words, code=code)


def test_an_app_whose_import_was_interrupted_cannot_run(diamond: Ledger) -> None:
    store, info = open_store(diamond.store), AppInfo(diamond.app, 1, initialised="debits")
    apps.create_app(store, replace(info, starts={diamond.topic: (0, 0, 0)}))
    with pytest.raises(Refused, match=r"`slackwater init` of app .* was interrupted: debits has no rows yet"):
        diamond.catch_up()
    assert not history.list_stages(store, diamond.app)
