"""The server of an in-memory Kafka stops with its block, even if clients connect during the stop."""

import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge  # type: ignore[attr-defined]
from socket import create_connection

from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.memory_server import SERVER_PROPERTY, serve

PATIENCE_S = 30.0


def test_a_client_that_connects_during_the_stop_does_not_prevent_it(memory_kafka: MemoryKafka) -> None:
    server = ExitStack()
    _, port, key = server.enter_context(serve(memory_kafka))[SERVER_PROPERTY].split()
    # The server waits for this client's part of the handshake.
    late = Connection(create_connection(("127.0.0.1", int(port))).detach())
    ending = threading.Thread(target=server.close, daemon=True)
    ending.start()
    answer_challenge(late, bytes.fromhex(key))
    deliver_challenge(late, bytes.fromhex(key))
    ending.join(PATIENCE_S)
    late.close()
    assert not ending.is_alive()
