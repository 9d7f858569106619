"""What several test files share: a real S3 server, and every kind of object store."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from slackwater.pipeline.broker import EmbeddedKafka
from slackwater.store.memory import MemoryStore
from slackwater.store.objects import ObjectStore
from slackwater.store.open import open_store

from .profiles import PROFILE

# Where the tests run in the background of a shell they inherit a SIGINT that is ignored, and so would the programs
# whose Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores are shared with servers: how long one example takes says nothing.
settings.register_profile("default", deadline=None, max_examples=100)
# `SLACKWATER_PROFILE=ci`: some minutes. `nightly`: hours, for a machine that has nothing else to do.
settings.register_profile("ci", deadline=None, max_examples=500, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=10_000, print_blob=True)
# Whether a planted fault is noticed must not depend on the day, and nobody reads the smallest example of it.
settings.register_profile(
    "mutants", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(PROFILE)

BUCKET = "slackwater-tests"


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a running S3 server with an empty bucket, to which the AWS environment points."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    folder = tmp_path_factory.mktemp("s3")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests-secret")
        patch.setenv("AWS_REGION", "us-east-1")
        # Neither the developer's own configuration nor a proxy has a say.
        patch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                stdout=log,
                stderr=log,
            )
        try:
            _await_answer(server, port, folder / "server.log")
            import boto3  # takes a quarter of a second, which tests without S3 need not wait for

            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await_answer(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        except OSError:
            pass
        try:
            server.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"the S3 server on port {port} did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running broker. A test that stops it must start it again."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def one_spark() -> Iterator[None]:
    """One session for all runs in this process; those that are killed or interrupted have processes of their own."""
    from slackwater.pipeline.session import spark_session  # what tests without Spark need not wait for

    from .running import SHORT_LIVED

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        with spark_session("tests", master="local[2]"):
            yield


@pytest.fixture
def s3_url(s3_server: str) -> str:
    """A fresh store root on the S3 server."""
    return f"s3://{BUCKET}/{uuid4().hex}"


@pytest.fixture(
    params=["memory", "folder", pytest.param("s3", marks=pytest.mark.s3)],
)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind in turn."""
    make: dict[str, Callable[[], ObjectStore]] = {
        "memory": MemoryStore,
        "folder": lambda: open_store(str(tmp_path / "root")),
        "s3": lambda: open_store(request.getfixturevalue("s3_url")),
    }
    return make[request.param]()
