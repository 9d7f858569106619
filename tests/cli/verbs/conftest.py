"""What the tests of verbs work on: an app with a believable history in a local folder."""

from pathlib import Path

import pytest
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import BROKEN
from tests.support.histories import Clock, FlightsApp, Kafka, flights


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def app(store: ObjectStore) -> FlightsApp:
    """Forty good flights in four batches, a broken one in a fifth, and five flights on the way."""
    app = FlightsApp(store, Kafka(), clock=Clock())
    app.run(flights(40))
    app.run([BROKEN])
    app.send(*flights(5))
    app.step("legs")
    return app
