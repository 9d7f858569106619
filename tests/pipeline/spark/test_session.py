"""Settings of `slackwater run` for Spark: `--conf`, `--py-files`, and slackwater's modules for other machines."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import slackwater
import slackwater as sw
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.cli.main import app as cli
from slackwater.errors import NotFound, Refused, Usage
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.source.data_source import TOPIC_SCHEMA, InputSource, open_stream
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.spark.conf import _zipped, add_to_python_path, parse_settings, secret_names
from slackwater.pipeline.spark.session import running_session, spark_session
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.records import Position
from slackwater.store.objects.s3_settings import S3Access, S3ClientConfig, S3Credentials, S3Settings
from typer.testing import CliRunner

from tests.support.running import APPS, PAIR

PASSWORD = "hushhushpassword"
KAFKA = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": PASSWORD}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--conf", "spark.executor.memory"), "--conf takes KEY=VALUE, not 'spark.executor.memory'"),
        (("--conf", PASSWORD), "--conf takes KEY=VALUE; one of them has no '='"),
        (("--conf", "executor.memory=2g"), "'executor.memory' is not a setting of Spark"),
        (("--conf", "=2g"), "'' is not a setting of Spark"),
        (
            ("--conf", f"spark.x.secret={PASSWORD}\n"),
            "the value of Spark's setting spark.x.secret has an unprintable character",
        ),
        (("--conf", "spark.master=local[1]"), "spark.master cannot be set by --conf"),
        (("--conf", "spark.submit.pyFiles=a.py"), "spark.submit.pyFiles cannot be set by --conf"),
        (("--conf", "spark.submit.deployMode=cluster"), "`slackwater run` always runs the driver"),
        (("--conf", "spark.sql.session.timeZone=Europe/Berlin"), "tables and sessions use UTC"),
        (("--py-files", "absent.py"), "no Python file named 'absent.py'; the nearest: absence.py"),
        (("--py-files", "absence.py,"), "--py-files has an empty file name"),
        (("--py-files", "hdfs://head/rules.zip"), "expected a local file"),
        (("--py-files", "folder"), "--py-files folder is a folder"),
        (("--py-files", "rules.txt"), "expected a file that ends in .py, .zip, .egg"),
        (("--py-files", "broken.zip"), "--py-files broken.zip is not a valid zip"),
        (("--py-files", "absence.py", "--py-files", "folder/absence.py"), "Spark identifies files by their names"),
    ],
)
@pytest.mark.usefixtures("isolated")
def test_an_impossible_setting_is_refused_with_one_sentence_before_anything_starts(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("absence.py", "folder/absence.py", "rules.txt", "broken.zip"):
        (tmp_path / name).write_text("")
    # Nothing listens there: a request to the broker before the check would wait.
    done = CliRunner().invoke(cli, ["run", "program.py", "--kafka", "127.0.0.1:1", *words])
    assert done.exit_code in (1, 2)
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert PASSWORD not in done.output + done.stderr


def test_the_last_of_repeated_settings_counts_and_values_may_contain_an_equals_sign() -> None:
    words = (
        "spark.executor.memory=1g",
        "spark.executor.memory=2g",
        "spark.executor.extraJavaOptions=-Da=b",
        "spark.x=",
    )
    assert parse_settings(words) == {
        "spark.executor.memory": "2g",
        "spark.executor.extraJavaOptions": "-Da=b",
        "spark.x": "",
    }


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"spark_conf": {"spark.master": "local[2]"}}, "spark.master cannot be set by spark_conf"),
        ({"spark_conf": {"executor.memory": "2g"}}, "spark_conf 'executor.memory' is not a setting of Spark"),
        ({"spark_conf": {"spark.executor.cores": 2}}, "spark_conf has 'spark.executor.cores': 2"),
        ({"spark_conf": {"spark.sql.session.timeZone": "CET"}}, "tables and sessions use UTC"),
        ({"py_files": ["rules.txt"]}, "no Python file named 'rules.txt'"),
    ],
)
def test_spark_options_in_python_are_checked_like_those_of_the_command_line(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    # Nothing listens there: a request to the broker before the check would wait.
    with pytest.raises((Usage, NotFound)) as refused:
        sw.App("flights").run(store=str(tmp_path), kafka="127.0.0.1:1", **more)
    assert said in refused.value.message


@pytest.mark.usefixtures("isolated")
def test_a_secret_in_the_settings_is_warned_about_by_name() -> None:
    assert secret_names(["spark.hadoop.fs.s3a.secret.key", "spark.executor.memory"]) == (
        "spark.hadoop.fs.s3a.secret.key",
    )
    words = ("--conf", f"spark.hadoop.fs.s3a.secret.key={PASSWORD}", "--kafka", "127.0.0.1:1")
    done = CliRunner().invoke(cli, ["run", "absent.py", *words])
    assert "spark.hadoop.fs.s3a.secret.key: a secret on the command line" in done.stderr
    assert PASSWORD not in done.output + done.stderr


@pytest.mark.parametrize(
    ("said", "variables", "way"),
    [
        ({"master": "sc://spark:15002"}, {}, "the master is sc://spark:15002"),
        ({}, {"SPARK_REMOTE": "sc://spark:15002"}, "SPARK_REMOTE is set"),
        ({"conf": {"spark.remote": "local"}}, {}, "spark.remote is set"),
        ({"conf": {"spark.api.mode": "connect"}}, {}, "spark.api.mode is connect"),
        # What pyspark sets when a notebook has such a session: pyspark.sql.connect.session.SparkSession.
        ({}, {"SPARK_CONNECT_MODE_ENABLED": "1"}, "SPARK_CONNECT_MODE_ENABLED is set"),
    ],
)
def test_spark_connect_is_refused_with_one_sentence(
    said: dict[str, Any], variables: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=r"does not run over Spark Connect") as refused, spark_session("app", **said):
        pass
    assert f"({way})" in refused.value.message
    assert "--master local[*]" in refused.value.hint


@pytest.fixture
def path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", [".py", ".zip"])
def test_a_program_can_import_modules_given_by_py_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pair_rules", raising=False)
    rules = APPS / "rules" / "pair_rules.py"
    if kind == ".zip":
        with zipfile.ZipFile(tmp_path / "rules.zip", "w") as packed:
            packed.write(rules, rules.name)
        rules = tmp_path / "rules.zip"
    add_to_python_path([str(rules)])
    assert load_app(str(PAIR)).name == "pair"
    assert str(sys.modules["pair_rules"].__file__).startswith(str(rules))


def test_the_package_sent_to_workers_has_all_modules_that_a_task_imports(tmp_path: Path) -> None:
    home = Path(slackwater.__file__).parent
    data = _zipped(home)
    assert data == _zipped(home)
    assert len(data) < 6 << 18
    sent = tmp_path / "slackwater.zip"
    sent.write_bytes(data)
    program = (
        f"import sys; sys.path.insert(0, {str(sent)!r})\n"
        "import slackwater.pipeline.batch.task, slackwater.pipeline.source.readers\n"
        "import slackwater.state.kinds.aggregate, slackwater.state.kinds.update, slackwater.state.kinds.upsert\n"
        "import slackwater.store.objects.s3_store, slackwater as sw\n"
        "sw.aggregate(n=sw.count())\n"
        "ours = [m.__file__ for name, m in sys.modules.items() if name.startswith('slackwater')]\n"
        f"assert all(file.startswith({str(sent)!r}) for file in ours), ours\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Session:
    """The parts of a Spark session that are used to open a stream. Its options are those that Spark's plans show."""

    def __init__(self) -> None:
        self.registered: list[type] = []
        self.options: dict[str, str] = {}
        self.made: object = None
        self.dataSource = self.readStream = self

    def register(self, source: type) -> None:
        self.registered.append(source)

    def format(self, name: str) -> "Session":
        assert self.registered[-1].name() == name  # type: ignore[attr-defined]
        return self

    def option(self, name: str, value: str) -> "Session":
        self.options[name] = value
        return self

    def load(self) -> "Session":
        # As Spark does it: a class, and the source of it, cross to other processes as pickles.
        kind = pickle.loads(cloudpickle.dumps(self.registered[-1]))  # noqa: S301
        self.made = pickle.loads(cloudpickle.dumps(kind(self.options)))  # noqa: S301
        return self


@pytest.mark.parametrize("upstream", ["", "u"])
def test_a_source_gets_passwords_separately_from_its_options_and_passes_them_to_readers(
    upstream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A planning process puts it there, which in a test is this one.
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "before")
    session, rows = Session(), StructType([StructField("n", LongType())])
    options = SourceOptions(input="c", topic="t", upstream=upstream, app="a", store=str(tmp_path))
    private = PrivateOptions(KAFKA, environ={"AWS_SECRET_ACCESS_KEY": PASSWORD})
    open_stream(session, options, private, rows if upstream else None)  # type: ignore[arg-type]
    assert PASSWORD not in str(session.options) + repr(private)
    # The class holds the passwords only while it is created; other streams get none of them.
    assert session.registered[-1] is InputSource
    assert InputSource.private == PrivateOptions()
    assert isinstance(session.made, InputSource)
    assert session.made.schema() == (rows if upstream else TOPIC_SCHEMA)
    reader = session.made.streamReader(rows)
    there = pickle.loads(cloudpickle.dumps(reader))  # noqa: S301
    assert there._private.kafka == KAFKA
    assert there._options == options
    at = Position("c", (0,)).to_json()
    assert PASSWORD not in repr(reader) + repr(reader.partitions(at, at))


def test_worker_resources_show_no_secret_and_give_workers_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    access = S3Access(S3ClientConfig("http://s3", "r", S3Settings()), S3Credentials("AKIAHUSH", PASSWORD, PASSWORD))
    resources = WorkerResources(
        "a", "s", "s3://bucket", KAFKA, (Path("/driver"), 1), 30, s3=access, has_remote_tasks=True
    )
    assert PASSWORD not in repr(resources) + repr(Options(store="s3://bucket", kafka=KAFKA))
    assert "AKIAHUSH" not in repr(resources)
    monkeypatch.delenv("SLACKWATER_CACHE", raising=False)
    assert resources.local_cache() == (Path("/driver"), 1)
    monkeypatch.setenv("SLACKWATER_CACHE", "/worker")
    assert resources.local_cache() == (Path("/worker"), 1)
    here = WorkerResources("a", "s", "s3://bucket", KAFKA, (Path("/driver"), 1), 30)
    assert here.local_cache() == (Path("/driver"), 1)


def test_the_configured_python_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.pipeline.spark.jvm import python_interpreter

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with python_interpreter(on_this_machine=False, configured="/opt/python"):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_a_run_in_another_thread_uses_the_running_session_and_leaves_it_running() -> None:
    here = running_session()
    assert here is not None

    def work() -> int:
        # Spark's own answer is of the thread that asks.
        assert SparkSession.getActiveSession() is None
        with spark_session("a notebook's") as session:
            assert session.sparkContext is here.sparkContext
            return session.range(3).count()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == 3
    assert here.range(2).count() == 2
