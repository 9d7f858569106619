"""Fixtures for tests of verbs: an app with a realistic history in a local folder."""

from pathlib import Path

import pytest
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import BROKEN
from tests.support.histories import Clock, FlightsApp, Kafka, copied, flights


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def written_app(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app with forty good flights in four batches, a bad one in a fifth batch, and five flights in flight."""
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("written") / "store")), Kafka(), clock=Clock())
    app.run(flights(40))
    app.run([BROKEN])
    app.send(*flights(5))
    app.step("legs")
    return app


@pytest.fixture
def app(written_app: FlightsApp, store: ObjectStore) -> FlightsApp:
    """Return the app in the store of the command line."""
    return copied(written_app, store)
