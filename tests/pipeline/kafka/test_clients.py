"""Kafka clients that several threads of a process use while a secret changes."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException
from slackwater.errors import SlackwaterError
from slackwater.pipeline.kafka.clients import Clients, process_clients
from slackwater.pipeline.kafka.librdkafka import LibrdKafka

Request = Callable[[LibrdKafka], object]

REQUESTS: dict[str, Request] = {
    "topic_state": lambda kafka: kafka.topic_state("t", timeout_s=0.1),
    "offsets_for_times": lambda kafka: kafka.offsets_for_times("t", [0]),
    "topic_ids": lambda kafka: kafka.topic_ids(["t"]),
    "create_topics": lambda kafka: kafka.create_topics({"t": 1}),
    "delete_topics": lambda kafka: kafka.delete_topics(["t"]),
    "delete_records": lambda kafka: kafka.delete_records("t", 1),
    "topic_config": lambda kafka: kafka.topic_config("t"),
    "write_error": lambda kafka: kafka.write_error("t"),
    "delete_groups": lambda kafka: kafka.delete_groups(["g"]),
    "group_consumer": lambda kafka: process_clients(kafka.properties).group_consumer("g"),
}


class FragileAdmin:
    """Takes the place of confluent-kafka's admin client. It is discarded during each request, which then fails.

    `lost` has the requests that were still awaited when the last reference to the client had ended.
    """

    def __init__(self, clients: Clients, lost: list[str]) -> None:
        self._clients, self._lost = clients, lost

    def poll(self, _seconds: float) -> None: ...

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        weak, lost, clients = ref(self), self._lost, self._clients

        class Pending(dict[object, Any]):
            def __missing__(self, key: object) -> Any:
                return self

            def items(self) -> Any:
                return [("t", self)]

            def values(self) -> Any:
                return [self]

            def result(self) -> None:
                if weak() is None:
                    lost.append(name)
                raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

        def request(*_: object, **__: object) -> Pending:
            clients._discard_all()  # as `secrets` does in another thread
            return Pending()

        return request


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_keeps_its_client_until_it_is_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, lost = LibrdKafka({"bootstrap.servers": f"{name}:1"}), list[str]()
    clients = process_clients(kafka.properties)
    monkeypatch.setattr(clients, "_admin", FragileAdmin(clients, lost))
    with suppress(SlackwaterError, KafkaException):
        REQUESTS[name](kafka)
    assert clients._admin is None  # the request was made
    assert not lost


def test_a_refused_login_names_a_secret_file_whose_new_content_is_unusable(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("good")
    clients = Clients({"bootstrap.servers": "b:1", "sasl.password.file": str(secret)})
    clients.secrets()
    clients._record_error(KafkaError(KafkaError._AUTHENTICATION, "no"))
    usual = "check the user and the secret: docs/operating.md#kafka-logins"
    assert clients.login_hint() == usual
    secret.write_bytes("hush".encode("utf-16"))
    assert clients.secrets() == {"sasl.password": "good"}
    assert clients.login_hint().startswith(f"{usual}; ")
    assert clients.login_hint().endswith(f"cannot read Kafka's sasl.password from {secret}: it is not text")
    secret.write_text("better")
    clients.secrets()
    assert clients.login_hint() == usual


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_threads_share_one_client_and_its_replacement(silent: str, tmp_path: Path) -> None:
    secret, threads = tmp_path / "password", 8
    secret.write_text("one")
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "u"}
    clients = Clients({"bootstrap.servers": silent, **login, "sasl.password.file": str(secret)})
    admins = []
    with ThreadPoolExecutor(threads) as executor:
        for password in ("one", "other"):
            secret.write_text(password)
            barrier = threading.Barrier(threads)

            def ask(barrier: threading.Barrier = barrier) -> object:
                barrier.wait()
                return clients.admin

            asked = [future.result() for future in [executor.submit(ask) for _ in range(threads)]]
            assert len(set(map(id, asked))) == 1
            admins.append(asked[0])
    assert admins[0] is not admins[1]
