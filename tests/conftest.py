"""Shared fixtures: servers, Kafka clients, every kind of object store, Spark."""

import gc
import multiprocessing.util
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from slackwater.pipeline.dev.java import MissingTool, find_java
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.memory_server import SERVER_PROPERTY, RemoteMemoryKafka, serve
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.leaves import fold

from tests.crash.points import TALLY
from tests.durations import Recorder, longest_first, needs_servers
from tests.models.profiles import PROFILE
from tests.programs import spark_classes
from tests.store.objects.clouds.servers import azurite, fake_gcs
from tests.store.objects.s3.directory_buckets import DIRECTORY_BUCKET, directory_buckets
from tests.support.manifests import SMALL_LEAVES
from tests.support.registries import EmbeddedRegistry
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, moto, versitygw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.histories import FlightsApp

# If the tests run in the background of a shell, they inherit an ignored SIGINT. The programs whose Ctrl-C is tested
# would inherit it as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores are shared with servers, so the duration of one example has no meaning. Also, this gate must not fail only
# on some days: the profiles below search for new failures.
settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
# `SLACKWATER_PROFILE=ci`: for `make test-all`. `nightly`: takes hours, for an otherwise idle machine.
settings.register_profile("ci", deadline=None, max_examples=500, derandomize=False, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=10_000, derandomize=False, print_blob=True)
# The result for a mutant must not depend on the day, and its smallest failing example is not needed.
settings.register_profile(
    "mutants", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", action="store_true", help="write what test files take to tests/durations.json"
    )
    parser.addoption("--crash-points", action="store_true", help="print which points of each verb it was killed at")


def pytest_configure(config: pytest.Config) -> None:
    """Put all temporary files into one folder, because killed programs cannot delete theirs."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
    if config.getoption("--crash-points"):
        config.pluginmanager.register(TALLY)
    patch = pytest.MonkeyPatch()
    multiprocessing.util.get_temp_dir()  # which that library removes itself, after the folder is gone
    folder = tempfile.mkdtemp(prefix="sw-tests-")
    patch.setattr(tempfile, "tempdir", folder)
    patch.setenv("TMPDIR", folder)
    # Java does not heed TMPDIR.
    patch.setenv("JDK_JAVA_OPTIONS", f"{spark_classes.options()} -Djava.io.tmpdir={folder}")
    # By default, Spark serves the rows of a `collect` on a port, to the first process that connects, even a stranger.
    # The longest path of a socket has 103 bytes on some systems, and Spark adds 43.
    if len(folder) <= 60:
        patch.setenv("PYSPARK_UDS_MODE", "true")
    # Verbs that lower the priority of their process would lower it for all later tests, and for their servers.
    patch.setattr(os, "setpriority", lambda _which, _who, _priority: None)
    with suppress(MissingTool):
        # Programs that start Spark by themselves must find a Java as well.
        for name, value in find_java("Spark").environment.items():
            patch.setenv(name, value)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # Mutation testing runs pytest many times in one process.
    config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude thousands of tests and modules from garbage collection, which would take a third of the time here."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Mark the files whose content shows that they need Kafka or Spark (WITH_SERVERS), for `make test`."""
    for path in {item.path for item in items if needs_servers(item)}:
        if not re.search(r"mark\.(kafka|spark)|any_kafka", path.read_text()):
            raise pytest.UsageError(f"{path}: `make test` would not find its tests with servers: see its Makefile")
    yield  # -m deselects items
    longest_first(items)


@pytest.fixture(scope="session", autouse=True)
def usual_priority() -> Iterator[None]:
    """Check that no test lowers the priority of this process: beside other processes, later tests would starve."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.fixture(scope="session")
def aws_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Set credentials for the servers below, and remove other variables of AWS and of `[s3]`."""
    absent = tmp_path_factory.mktemp("aws") / "none"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "SLACKWATER_S3_"))]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_REGION", "us-east-1")
        # Exclude the developer's own configuration and proxies.
        patch.setenv("AWS_CONFIG_FILE", str(absent))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(absent))
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield patch


@pytest.fixture(scope="session")
def s3_server(aws_environment: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the endpoint of a running moto with an empty bucket, set in the AWS environment."""
    with moto(tmp_path_factory.mktemp("moto")) as endpoint:
        aws_environment.setenv("AWS_ENDPOINT_URL", endpoint)
        yield _with_bucket(endpoint)


@pytest.fixture(scope="session")
def directory_server(s3_server: str) -> Iterator[str]:
    """Return the endpoint of a server with an empty directory bucket."""
    with directory_buckets(s3_server) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def versitygw_server(aws_environment: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the endpoint of a running versitygw with an empty bucket. Skips if versitygw was not built."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as endpoint:
        yield _with_bucket(endpoint)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of a running Azurite with an empty container. Skips if it was not built."""
    with azurite(tmp_path_factory.mktemp("azurite")) as environment:
        yield environment


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of a running fake-gcs-server with an empty bucket. Skips if it was not built."""
    with fake_gcs(tmp_path_factory.mktemp("gcs")) as environment:
        yield environment


def _with_bucket(endpoint: str) -> str:
    import boto3  # takes a quarter of a second, which tests without S3 need not spend

    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    return endpoint


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Return a running broker. A test that stops it must start it again."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def memory_kafka() -> MemoryKafka:
    return MemoryKafka.named(f"memory://{uuid4().hex}")


@pytest.fixture(params=["memory", "served", pytest.param("broker", marks=pytest.mark.kafka)])
def any_kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Return each kind of Kafka in turn: an empty one in memory, one in another process, and the running broker."""
    if request.param == "broker":
        yield open_kafka(request.getfixturevalue("broker"))
        return
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    if request.param == "memory":
        yield kafka
        return
    with serve(kafka) as properties:
        yield RemoteMemoryKafka(kafka.address, properties[SERVER_PROPERTY])


@pytest.fixture
def app() -> "FlightsApp":
    """Return an app with forty flights, for this test only."""
    from tests.support.histories import app_of

    return app_of()


@pytest.fixture(scope="session")
def broker(kafka: EmbeddedKafka) -> str:
    """Return the address of the running broker."""
    return kafka.bootstrap


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    """Return a running schema registry. A test that stops it must start it again; its content is then lost."""
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def spark_here() -> Iterator[ExitStack]:
    """Keep the session of `one_spark` open between tests."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def one_spark(spark_here: ExitStack) -> None:
    """Share one Spark session among all runs in this process. Runs that are killed have their own processes."""
    from pyspark import SparkContext  # tests without Spark need not import this
    from slackwater.pipeline.spark.session import spark_session

    if SparkContext._active_spark_context is None:
        spark_here.enter_context(spark_session("tests", master="local[2]"))


@pytest.fixture
def spark(one_spark: None) -> "SparkSession":
    """Return the session of this process."""
    from slackwater.pipeline.spark.session import running_session

    session = running_session()
    assert session is not None
    return session


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the Spark session of this process, so that the code under test starts a JVM."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)


_WITH_SMALL_LEAVES = (
    "models",
    "operations/erasure",
    "operations/disaster_recovery",
    "operations/staging/clone",
    "snapshot/gc",
)


@pytest.fixture(autouse=True)
def small_leaves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits so that even small tables have leaves; for verbs that list, copy, change or delete objects."""
    folder = request.path.parent.relative_to(Path(__file__).parent).as_posix()
    if folder.startswith(_WITH_SMALL_LEAVES):
        for name, value in SMALL_LEAVES.items():
            monkeypatch.setattr(fold, name, value)


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's settings from the command line. The test gets its own store, cache and working folder."""
    for name in [name for name in os.environ if name.startswith("SLACKWATER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLACKWATER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def s3_url(s3_server: str) -> str:
    """Return a new store root on the moto server."""
    return f"s3://{BUCKET}/{uuid4().hex}"


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.ci)])
def each_s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the endpoint of each S3 server in turn; it is also set in the AWS environment."""
    fixture = {"moto": "s3_server", "versitygw": "versitygw_server"}[request.param]
    endpoint: str = request.getfixturevalue(fixture)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return endpoint


@pytest.fixture(scope="session")
def s3_proxies() -> Iterator[Callable[[str], S3Proxy]]:
    """Return one proxy per S3 server for all tests, so that they share boto3's clients, which are slow to create."""
    with ExitStack() as stack:
        yield cache(lambda endpoint: stack.enter_context(s3_proxy(endpoint)))


@pytest.fixture
def proxy(each_s3: str, s3_proxies: Callable[[str], S3Proxy]) -> S3Proxy:
    """Return a proxy in front of each S3 server in turn; a test can make it inject faults."""
    found = s3_proxies(each_s3)
    found.reset()
    return found


@pytest.fixture(
    params=[
        "memory",
        "folder",
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("directory", marks=[pytest.mark.s3, pytest.mark.ci]),
        pytest.param("versitygw", marks=[pytest.mark.s3, pytest.mark.ci]),
        pytest.param("azure", marks=pytest.mark.ci),
        pytest.param("google", marks=pytest.mark.ci),
    ],
)
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Return an empty store of each kind in turn."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return open_store(str(tmp_path / "root"))
    if request.param in ("azure", "google"):
        return open_store(f"{request.getfixturevalue(f'{request.param}_root')}/{uuid4().hex}")
    bucket = DIRECTORY_BUCKET if request.param == "directory" else BUCKET
    fixture = {"moto": "s3_server", "directory": "directory_server", "versitygw": "versitygw_server"}[request.param]
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue(fixture))
    return open_store(f"s3://{bucket}/{uuid4().hex}")


@pytest.fixture
def azure_root(azure_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the root of a container on Azurite, with the environment that names it."""
    for name, value in azure_server.items():
        monkeypatch.setenv(name, value)
    return f"az://{BUCKET}"


@pytest.fixture
def google_root(google_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the root of a bucket on fake-gcs-server, with the environment that names it."""
    for name, value in google_server.items():
        monkeypatch.setenv(name, value)
    return f"gs://{BUCKET}"


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.fixture(scope="module", name="cache")
def sst_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SstCache]:
    """Return the local SST cache of one test file."""
    with closing(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)) as found:
        yield found
