"""A clone takes over from a running app on Spark while records arrive, and each row is published once."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from slackwater.errors import Fenced
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, history

from tests.pipeline.publish.reader import committed
from tests.support.running import APPS, Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def batches_s(store: ObjectStore, *apps_: str) -> float:
    """Return the longest total duration of any app: the sum over its stages of their longest batches."""
    return max(
        sum(
            max(
                history.read(store, app, stage, version).duration_ms
                for version in history.list_versions(store, app, stage)
            )
            for stage in history.list_stages(store, app)
        )
        / 1_000
        for app in apps_
    )


@pytest.mark.usefixtures("one_spark")
def test_the_clone_publishes_later_rows_without_a_restart(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = f"alerts-{uuid4().hex[:6]}"
    monkeypatch.setenv("ALERTS_TOPIC", alerts)
    old = Ledger(kafka.bootstrap, tmp_path, program=APPS / "publishing.py")
    old.kafka.create_topics({alerts: 1})
    new = replace(old, app=f"{old.app}-staging")
    store = open_store(old.store)

    def published() -> list[int]:
        return [json.loads(message.value() or b"")["seq"] for message in committed(old.kafka, alerts)]

    old.send(100)
    with old.running_here() as production:
        production("branches")
        old.slackwater("clone", old.app, new.app)
        with old.fed(50), new.running_here() as staging:
            staging("entries")
            dry = json.loads(old.slackwater("promote", new.app, "--over", old.app, "--dry-run", "--json").stdout)
            assert (dry["app"], [sink["sink"] for sink in dry["sinks"]]) == (new.app, [alerts])
            done = json.loads(old.slackwater("promote", new.app, "--over", old.app, "--json").stdout)
            assert done["held_s"] < 20 + 3 * batches_s(store, old.app, new.app)
            with pytest.raises(Fenced, match="was promoted over: another app has its name and its sinks"):
                all(production("entries") for _ in count())
            before = len(published())
            eventually(lambda: len(published()) > before + 100, "the clone publishes")
        again = old.slackwater("promote", new.app, "--over", old.app)
        assert "done already" in again.stdout
        assert f"{old.app} (folder {new.app})  created" in old.slackwater("status", old.app).stdout
        refused = old.slackwater("promote", f"{old.app}~1", "--over", old.app, check=False)
        assert refused.returncode == 2
    # The clone continues under the name; the other app has the history from before.
    assert apps.folder_of(store, old.app) == new.app
    old.catch_up()
    eventually(lambda: len(published()) == old.sent, "all is published")
    assert sorted(published()) == list(range(old.sent))
    head = history.head(store, old.app, "entries")
    assert head is not None
    assert head.kind == "demote"
    assert old.slackwater("query", f"{old.app}~1", "SELECT sum(n) FROM branches", "--json").returncode == 0
