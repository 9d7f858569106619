"""Feeders of the documentation and the examples report undelivered events, also by their exit code."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from slackwater.client.project.write import write_project
from slackwater.pipeline.dev.jvm_server import HOST, choose_port
from slackwater.pipeline.kafka.open import end_offsets, open_kafka

from tests.support.static import ROOT

TOO_LARGE = {"max.message.bytes": "20"}


@pytest.fixture
def first_app(tmp_path: Path) -> list[str]:
    """Return the command of a new project's feeder, which the first-app page uses."""
    write_project("shop", tmp_path / "shop")
    return [sys.executable, str(tmp_path / "shop" / "feed.py")]


EXAMPLE = [sys.executable, str(ROOT / "examples" / "feed.py")]


def feed(broker: str, *words: str) -> tuple[int, str]:
    """Return a feeder's exit code and output."""
    done = subprocess.run(words, env={"SLACKWATER_KAFKA": broker}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.ci
def test_an_unreachable_broker_is_reported(first_app: list[str]) -> None:
    nobody = f"{HOST}:{choose_port()}"
    code, said = feed(nobody, *first_app, "orders", "0", "10")
    assert code == 1
    assert "cannot make the topic orders: " in said
    code, said = feed(nobody, *EXAMPLE, "--end", "10")
    assert code == 1
    assert f"topic flights is not there and cannot be made at {nobody}: " in said


@pytest.mark.kafka
def test_events_that_the_broker_refuses_are_reported(broker: str, first_app: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    full = f"full-{uuid4().hex}"
    admin.create_topics([NewTopic(full, 3, config=TOO_LARGE)])[full].result(30)
    code, said = feed(broker, *first_app, full, "0", "10")
    assert code == 1
    assert f"10 of 10 orders did not reach {full}: " in said
    assert "too large" in said
    code, said = feed(broker, *EXAMPLE, "--topic", full, "--end", "10")
    assert code == 1
    assert f"10 of 10 events did not reach {broker}: " in said


@pytest.mark.kafka
def test_the_feeder_of_the_first_app_says_how_many_orders_arrived(broker: str, first_app: list[str]) -> None:
    topic = f"orders-{uuid4().hex}"
    assert feed(broker, *first_app, topic, "0", "50") == (0, f"50 orders are in {topic}\n")
    assert feed(broker, *first_app, topic, "50", "60") == (0, f"10 orders are in {topic}\n")
    assert sum(end_offsets(open_kafka(broker), topic) or ()) == 60
