"""A store with three stages, served in a thread of this process."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import urllib3
from slackwater.client import Client
from slackwater.client.remote import Server
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.serve.server import ListenOptions, ServeInstance
from slackwater.serve.service import ServeOptions
from slackwater.settings import Settings
from slackwater.store.objects.local import LocalStore

from tests.support.histories import START_MS, Clock, FlightsApp, Kafka, copied, flights
from tests.support.running import SLACKWATER, eventually

# Most tests ask no SQL, and a process for it takes two seconds of processor to start.
FAST = ServeOptions(poll_interval_s=0.02, prestart_sql=False)
HERE = ListenOptions()


class Answered(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Ask:
    """An HTTP client of one server."""

    def __init__(self, url: str, **more: Any) -> None:
        self.url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=120, **more)

    def __call__(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, **asked: Any
    ) -> Answered:
        each = ((name, value if isinstance(value, list) else [value]) for name, value in asked.items())
        fields = [(name, one) for name, values in each for one in values]
        found = self._pool.request("GET", self.url + path, fields=fields or None, headers=headers)
        return Answered(found.status, found.headers, found.data)

    def token(self, token: str, path: str, **asked: Any) -> Answered:
        return self(path, headers={"authorization": f"Bearer {token}"}, **asked)


def client_of(app: FlightsApp) -> Client:
    """Return the library's client for an app's store, with a cache beside it."""
    return Client(Settings(store=app.store.url, cache=f"{app.store.url}-cache", cache_max_bytes=1 << 30))


def made(client: Client, name: str, *apps: str, **how: Any) -> str:
    data: Any = client.add_token(name, apps or ("flights",), **how).data
    token: str = data["token"]
    return token


@contextmanager
def serving(
    store: str,
    cache: Path,
    listening: ListenOptions = HERE,
    options: ServeOptions = FAST,
    kafka: str | None = None,
    **how: Any,
) -> Iterator[str]:
    """Start a server and yield its URL."""
    with (
        Client(Settings(store=store, brokers=kafka, cache=str(cache), cache_max_bytes=1 << 30)) as client,
        serving_client(client, listening, options, **how) as url,
    ):
        yield url


@contextmanager
def serving_client(
    client: Client, listening: ListenOptions = HERE, options: ServeOptions = FAST, **how: Any
) -> Iterator[str]:
    """Start a server on a client's store, and yield its URL."""
    port = choose_port()
    listening = replace(listening, port=port, advertise=listening.advertise and f"http://127.0.0.1:{port}")
    instance = ServeInstance(client, listening, options, **how)
    thread = threading.Thread(target=instance.run)
    thread.start()
    try:
        eventually(lambda: instance.is_up, "it listens")
        yield f"{'http' if listening.certificate is None else 'https'}://127.0.0.1:{port}"
    finally:
        instance.stop()
        thread.join()


@contextmanager
def serving_apart(
    store: str, cache: Path, *words: str, program: Path = SLACKWATER
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server in a separate process, and yield its URL and the process."""
    port = choose_port()
    ask, env = Ask(f"http://127.0.0.1:{port}"), {**os.environ, "SLACKWATER_CACHE": str(cache)}
    words = (str(program), "serve", "--store", store, "--port", str(port), *words)

    def is_up() -> bool:
        with suppress(urllib3.exceptions.HTTPError):
            return ask("/livez").status == 200
        return False

    with subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(is_up, "it listens")
            yield ask.url, process
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    app = FlightsApp(LocalStore(tmp_path_factory.mktemp("served") / "store"), Kafka(), clock=Clock(START_MS))
    app.run(flights(60))
    return app


@pytest.fixture(scope="session")
def instance(written: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a server that is shared by all tests that change nothing."""
    with serving(written.store.url, tmp_path_factory.mktemp("cache")) as url:
        yield url


@pytest.fixture
def ask(instance: str) -> Ask:
    return Ask(instance)


@pytest.fixture
def server(instance: str) -> Iterator[Server]:
    with Server(instance) as opened:
        yield opened


@pytest.fixture
def app(written: FlightsApp, tmp_path: Path) -> FlightsApp:
    """Return an app for this test only."""
    return copied(written, LocalStore(tmp_path / "store"))


@pytest.fixture
def own(app: FlightsApp, tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """Return a function that starts servers of this app."""
    with ExitStack() as stack:

        def begun(
            listening: ListenOptions = HERE,
            options: ServeOptions = FAST,
            cache: str = "cache",
            *,
            with_agents: bool = False,
            **how: Any,
        ) -> Ask:
            at = serving(app.store.url, tmp_path / cache, listening, options, with_agents=with_agents)
            return Ask(stack.enter_context(at), **how)

        yield begun


@pytest.fixture
def client(app: FlightsApp) -> Client:
    return client_of(app)
