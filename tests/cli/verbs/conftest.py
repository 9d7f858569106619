"""What the tests of verbs work on: an app with a believable history in a local folder."""

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
    """Forty good flights in four batches, a broken one in a fifth, and five flights on the way."""
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("written") / "store")), Kafka(), clock=Clock())
    app.run(flights(40))
    app.run([BROKEN])
    app.send(*flights(5))
    app.step("legs")
    return app


@pytest.fixture
def app(written_app: FlightsApp, store: ObjectStore) -> FlightsApp:
    """The same in the store of the command line."""
    return copied(written_app, store)
