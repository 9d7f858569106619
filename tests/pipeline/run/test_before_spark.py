"""Errors of a program or a command line are reported before Spark, Kafka or the store is contacted."""

from pathlib import Path

import pytest
import slackwater as sw
from slackwater.cli import main
from slackwater.errors import NotFound, Usage
from slackwater.pipeline.kafka.memory import MemoryKafka
from typer.testing import CliRunner

# Any command that waits for Kafka would wait longer than the test may: nothing listens at port 1.
pytestmark = [pytest.mark.usefixtures("isolated", "no_spark"), pytest.mark.timeout(60)]

STAGE = "@app.stage(reads=sw.topic('orders'), key='country', state=sw.aggregate(n=sw.count()))"
HEAD = ["import slackwater as sw", "app = sw.App('shop')"]
FUNCTION = "def countries(messages): return messages"


def shown(*lines: str, words: tuple[str, ...] = ("run",), kafka: str = "localhost:1") -> tuple[int, str]:
    """Return the exit code and the message of a verb, for a program with these lines."""
    Path("shop.py").write_text("\n".join(lines))
    result = CliRunner().invoke(main.app, [*words, "shop.py", "--kafka", kafka, "--patience", "30s"])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("lines", "said", "hint"),
    [
        (["print('hello')"], "shop.py declares no app; expected one slackwater.App(...)", "app = slackwater.App("),
        (
            ["import slackwater as sw", "one = sw.App('one')", "two = sw.App('two')"],
            "shop.py declares 2 apps, 'one' and 'two'; expected one",
            "a file of its own",
        ),
        (HEAD, "app 'shop' has no stage, so it would do nothing", "@app.stage(reads=..., state=...)"),
        (
            ["import slackwater as sw", "app = sw.App('Bird Strikes')"],
            "app name 'Bird Strikes'",
            "'bird-strikes' (shop",
        ),
        (["import slackwater as sw", "app = sw.App(7)"], "App: name is 7; expected str", 'for example App("shop")'),
        (
            [*HEAD, STAGE.replace("sw.aggregate(n=sw.count())", "sw.count()"), FUNCTION],
            "stage 'countries': state is",
            "state=slackwater.aggregate(orders=slackwater.count())",
        ),
        (
            [*HEAD, STAGE.replace("sw.aggregate(n=sw.count())", "{'n': sw.count()}"), FUNCTION],
            "stage 'countries': state is dict",
            "state=slackwater.aggregate(orders=slackwater.count()) (shop.py, line 3)",
        ),
        ([*HEAD, STAGE.replace("'country'", "7"), FUNCTION], "stage 'countries': key is 7; expected", "key="),
        (
            [*HEAD, STAGE.replace("sw.topic('orders')", "7"), FUNCTION],
            "stage 'countries' reads 7; expected a",
            "line 3",
        ),
        (
            [*HEAD, STAGE.replace("sw.topic('orders')", "'orders'"), FUNCTION],
            "no repartition topic named 'orders'",
            "slackwater.topic('orders')",
        ),
        ([*HEAD, STAGE.replace("key='country', ", ""), FUNCTION], "keeps state but has no key", "add key=[...]"),
        ([*HEAD, STAGE.replace("key=", "trigger=10, key="), FUNCTION], "trigger is 10", 'trigger="10 seconds"'),
        ([*HEAD, STAGE.replace("key=", "table={}, key="), FUNCTION], "table is {}", "slackwater.table(partitions=4)"),
        ([*HEAD, STAGE.replace("key=", "event_time='1h', key="), FUNCTION], "event_time", "slackwater.event_time("),
        ([*HEAD, STAGE.replace("key=", "writes=7, key="), FUNCTION], "stage 'countries' writes 7; expected", "line 3"),
        ([*HEAD, STAGE.replace("reads", "read"), FUNCTION], "unexpected keyword argument 'read'", "nearest is 'reads'"),
        (
            [*HEAD, STAGE.replace("count()", "avg('x')"), FUNCTION],
            "has no attribute 'avg'; did you mean 'mean'?",
            "fix",
        ),
        ([*HEAD, STAGE.replace("sw.topic('orders')", "sw.topic(7)"), FUNCTION], "topic name 7 is not usable", "line 3"),
        (
            ["import slackwater as sw", "app = sw.App('shop'"],
            "shop.py, line 2: SyntaxError: '(' was never closed",
            "fix",
        ),
        (["import my_company_lib"], "No module named 'my_company_lib'", "install a package with 'my_company_lib' for"),
    ],
)
def test_a_program_that_cannot_run_is_refused_with_a_hint(lines: list[str], said: str, hint: str) -> None:
    code, message = shown(*lines)
    assert code in (1, 2)
    assert "this is a bug" not in message
    line = next(line for line in message.splitlines() if line.startswith("error: "))
    assert said in line
    assert hint in message.partition("hint: ")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--master", "local[x"), "the master is 'local[x'; expected local[4], local[*]"),
        (("--master", "lokal"), "the master is 'lokal'; expected local[4], local[*]"),
        (("--store", "gcs://bucket/x"), "gcs:// is not supported; expected s3://bucket/prefix, gs://"),
        (("--store", "S3:/slackwater"), "has no valid bucket name"),
        (("--store", __file__), "is a file; expected s3://bucket/prefix, gs://"),
        (("--store", "C:\\state"), "is a Windows path; expected s3://bucket/prefix, gs://"),
        (("--trigger", "10"), "10"),
        (("--max-records", "0"), "greater than or equal to 1"),
    ],
)
def test_an_impossible_option_is_refused_at_once(words: tuple[str, ...], said: str) -> None:
    code, message = shown(*HEAD, STAGE, FUNCTION, words=("run", *words))
    assert code == 2
    assert said in message


@pytest.mark.parametrize("java", ["nowhere", "empty"])
def test_a_missing_java_is_reported(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_kafka: MemoryKafka
) -> None:
    memory_kafka.create_topics({"orders": 1})
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / java))
    code, message = shown(*HEAD, STAGE, FUNCTION, kafka=memory_kafka.address)
    assert code == 1
    assert f"Spark needs Java 17 or newer, and there is no java in JAVA_HOME ({tmp_path / java})" in message
    assert "hint: unset JAVA_HOME" in message


@pytest.mark.parametrize(
    "words", [("attach", "/nosuch", "--app", "x"), ("attach", "/nosuch", "--app", "x", "--dry-run")]
)
def test_a_missing_checkpoint_to_attach_is_reported_before_spark_starts(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main.app, [*words])
    assert result.exit_code == 1
    assert "no checkpoint of a Spark query named '/nosuch'; there is no file 'metadata' in it" in result.stderr
    assert "checkpointLocation" in result.stderr


def test_a_missing_checkpoint_to_adopt_is_reported_before_spark_starts(tmp_path: Path) -> None:
    with sw.open(str(tmp_path / "store"), kafka="localhost:1") as client:
        Path("shop.py").write_text("\n".join([*HEAD, STAGE, FUNCTION]))
        with pytest.raises(NotFound, match="no checkpoint of a Spark query named"):
            client.adopt(tmp_path / "nosuch", code="shop.py", stage="countries")


def test_a_stage_that_is_not_a_function_is_refused() -> None:
    app = sw.App("shop")
    with pytest.raises(Usage, match="stage 'countries' is a int; expected a function"):
        app.stage(reads=sw.topic("orders"), key="n", state=sw.aggregate(n=sw.count()), name="countries")(7)  # type: ignore[type-var]
