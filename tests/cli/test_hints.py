"""Nearly correct input on the command line: the commands that messages suggest must work."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from slackwater.cli import main
from slackwater.pipeline.kafka import channels
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from typer.testing import CliRunner, Result

from tests.support.histories import Clock, Flight, FlightsApp, Kafka, copied, flights

pytestmark = pytest.mark.usefixtures("isolated", "app")

BAD = "SELECT carrier FROM carriers WHERE delay > 1000"
KAFKA = ("--kafka", "in-memory:9092")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app with two good batches, a compaction, and a bad batch."""
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("written") / "store")), Kafka(), clock=Clock())
    app.run(flights(20))
    app.compact("carriers")
    app.run([Flight("N001", "C1", 5000)])
    return app


@pytest.fixture
def app(written: FlightsApp, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return the app in the store of the command line; clones find its topics."""
    app = copied(written, store)
    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    return app


def slackwater(*words: str) -> Result:
    return CliRunner().invoke(main.app, words)


def done(*words: str) -> str:
    result = slackwater(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_clone_command_that_bisect_suggests_always_has_a_free_name() -> None:
    for free in ("flights-staging", "flights-staging-2", "flights-staging-3"):
        proposed = done("bisect", "flights", "--where", BAD).splitlines()[-1]
        assert proposed.split()[-1] == free
        done(*shlex.split(proposed)[1:], *KAFKA)


@pytest.mark.parametrize("verb", ["query", "get", "verify", "clone"])
def test_a_future_time_is_refused_by_every_verb_that_takes_a_ref(verb: str) -> None:
    others = {"query": ["FROM carriers"], "get": ["C1"], "clone": ["copy", *KAFKA], "verify": []}[verb]
    of = "flights/carriers" if verb == "get" else "flights"
    result = slackwater(verb, f"{of}@9000-01-01", *others)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "9000-01-01 is in the future" in result.stderr
    assert f"{of}@now" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("bisect", "flights", "--where", BAD, "--good", "before-release"), 1, "did you mean flights@before-release"),
        (("bisect", "flights@good", "--where", BAD), 2, "if the app was good at flights@good, add --good flights@good"),
        (("bisect", "flights", "--where", "delay > 1000"), 2, "name the table: flights/aircraft\n"),
        (("query", "flights", "delay > 1000"), 2, "write a whole query: FROM TABLE WHERE delay > 1000"),
        (("get", "flights", "carriers", "C1"), 2, "hint: write flights/carriers C1"),
        (("get", "flights@-1h", "carriers", "C1"), 2, "hint: write flights/carriers@-1h C1"),
        (("get", "flights", "C1"), 2, "hint: write flights/TABLE C1"),
        (("history", "flights", "carriers", "C1"), 2, "hint: write flights/carriers C1"),
        (("history", "flights/carriers@-1h", "C1"), 2, "hint: write flights/carriers\n"),
        (("edit", "flights/carriers@-1h", "--sql", "DELETE FROM carriers"), 2, "hint: write flights/carriers\n"),
        (("rescale", "flights/carriers@v2", "--partitions", "3"), 2, "hint: write flights/carriers\n"),
        (("forget", "flights", "carriers", "C1"), 2, "hint: write flights/carriers C1"),
        (("forget", "flights/carriers"), 2, "hint: write flights/carriers KEY"),
        (("verify", "flights/carriers", "C1"), 2, "--forgotten needs a key"),
        (("query", "flights", "FROM 'x.parquet'"), 1, "a query can read the app's tables only"),
        (("query", "flights", "FROM carriers", "--out", "nowhere/x.csv"), 1, "no folder nowhere\n"),
    ],
)
def test_an_error_for_a_typo_names_the_nearest_valid_input(words: tuple[str, ...], code: int, said: str) -> None:
    result = slackwater(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_misspelled_query_is_not_taken_for_a_condition() -> None:
    for words in (("bisect", "flights", "--where"), ("query", "flights")):
        result = slackwater(*words, "SELEC 1 FROM carriers")
        assert result.exit_code == 2
        assert "condition" not in result.stderr


def test_the_error_for_a_missing_folder_names_it(tmp_path: Path) -> None:
    assert f"no folder {tmp_path}/nope;" in done("status", "--store", "nope")
    assert f"no folder {tmp_path}/nope;" in done("status", "--cost", "--store", "nope")
    (tmp_path / "empty").mkdir()
    assert "no folder" not in done("status", "--store", "empty")


def test_dev_down_names_the_folder_without_servers(tmp_path: Path) -> None:
    assert (
        done("dev", "down")
        == f"no development server of {tmp_path}/.slackwater is running; --folder names another folder\n"
    )


def test_log_shows_no_row_count_for_compactions() -> None:
    lines = [line.split() for line in done("log", "flights", "--stage", "carriers").splitlines()]
    (compaction,) = [line for line in lines if "compaction" in line]
    at = compaction.index("compaction")
    assert compaction[at + 1 : at + 3] == ["-", "-"]
    commits: Any = json.loads(done("log", "flights", "--stage", "carriers", "--json"))
    assert {commit["rows_in"] for commit in commits if commit["kind"] == "compaction"} == {0}


def test_status_of_a_clone_names_the_topic_that_it_reads(app: FlightsApp) -> None:
    app.kafka.send("flights-corrected", flights(40))
    done("clone", "flights", "copy", "--topic", "flights=flights-corrected", *KAFKA)
    assert "flights-corrected ?" in done("status", "copy").splitlines()[2]


def test_gc_without_rules_does_not_list_retention_as_a_reason() -> None:
    said = done("gc", "flights", "--dry-run")
    assert "without an expiry rule" in said
    assert " retention," not in said


@pytest.mark.parametrize(("root", "said"), [("elsewhere", "no app named 'bank'"), ("", "no store root is configured")])
def test_a_shell_without_the_settings_of_local_servers_is_told_where_they_are(
    root: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_STORE", str(tmp_path / "elsewhere"))
    hint = "for the servers of `slackwater dev up`: source .slackwater/dev/env.sh"
    (tmp_path / ".slackwater/dev").mkdir(parents=True)
    (tmp_path / ".slackwater/dev/env.sh").touch()
    assert hint not in slackwater("query", "bank", "FROM accounts").stderr
    monkeypatch.delenv("SLACKWATER_STORE")
    if root:
        (tmp_path / "slackwater.toml").write_text(f'store = "{root}"\n')
    result = slackwater("query", "bank", "FROM accounts")
    assert said in result.stderr
    assert hint in result.stderr
    (tmp_path / ".slackwater/dev/env.sh").unlink()
    assert hint not in slackwater("query", "bank", "FROM accounts").stderr
