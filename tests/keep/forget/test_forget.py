"""Forgetting a key: it is nowhere any more, and all else is as it was."""

from slackwater.keep.forget.asked import Asked
from slackwater.keep.forget.forget import Forgot, forget
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache

from tests.support.collecting import aging_app, fresh, keys_of, store_of
from tests.support.histories import FlightsApp, flights, rows_of
from pathlib import Path
import pytest

@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)

def make(app, cache, *keys, **options):
    return forget(app.store, cache, app.name, Asked.of(keys), by="ada@host", **options)

def test_a_key_is_gone_from_every_version(cache):
    app = aging_app()
    app.run(flights(40))
    app.compact("aircraft")
    app.run(flights(20))
    print(make(app, cache, "aircraft=N003", dry_run=True))
    done = make(app, cache, "aircraft=N003")
    print(done)
    import pyarrow.parquet as pq, io
    for key in sorted(keys_of(store_of(app))):
        data = app.store.get(key)
        if key.endswith("parquet"):
            assert "N003" not in str(pq.read_table(io.BytesIO(data)).to_pylist())
        else:
            assert b"N003" not in data
