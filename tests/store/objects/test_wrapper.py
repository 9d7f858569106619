"""A wrapped store that is opened at another root, as for clones across roots, has the same wrappers there."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from slackwater.errors import Unavailable, Usage
from slackwater.store.objects.counting import CountingStore, ReadCounters, Stats
from slackwater.store.objects.local import LocalStore, SpooledStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store
from slackwater.store.read.fetch import RangeReader
from slackwater.store.versions.entries.ssts import Sst

from tests.store.objects.faulty_store import FaultyStore

HASTY = S3Settings(read_timeout_s=2.0)


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "other")
    store.put("x", b"1234")
    return store


@pytest.mark.parametrize(
    "wrap",
    [
        lambda store, folder: store,
        lambda store, folder: SpooledStore(store, folder),
        lambda store, folder: FaultyStore(store, 1, refused=0, lost=0, late=0, echoed=0),
        lambda store, folder: SpooledStore(FaultyStore(store, 1, refused=0, lost=0, late=0, echoed=0), folder),
    ],
    ids=["counting", "spooled", "faulty", "spooled over faulty"],
)
def test_requests_to_another_root_are_counted(
    tmp_path: Path, other: LocalStore, wrap: Callable[[ObjectStore, Path], ObjectStore]
) -> None:
    counting = CountingStore(MemoryStore())
    store = wrap(counting, tmp_path / "spool")
    assert store.at("") is store.at(store.url) is store
    assert store.at(other.url) is store.at(other.url)
    assert store.at(other.url).url == other.url
    theirs = Sst("x", 0, 0, 1, 4, "c", 0, 1, 1, 1, 0, "", 0, root=other.url)
    assert RangeReader(store, theirs, ReadCounters()).read_counted(1, 3) == b"23"
    assert store.at(other.url).get("x") == b"1234"
    assert counting.take_stats() == Stats(gets=2, bytes_read=6)
    counting.put("y", b"7")
    assert counting.counts == {"get": 1, "get_range": 1, "put": 1}


def test_spooled_objects_are_not_visible_at_another_root(tmp_path: Path, other: LocalStore) -> None:
    store = SpooledStore(MemoryStore(), tmp_path / "spool")
    store.put("x", b"mine")
    assert (store.get("x"), store.at(other.url).get("x")) == (b"mine", b"1234")


def test_a_faulty_store_injects_its_faults_at_another_root(other: LocalStore) -> None:
    store = FaultyStore(MemoryStore(), 1, refused=1, lost=0, late=0, echoed=0)
    with pytest.raises(Unavailable):
        store.at(other.url).get("x")
    assert store.faults == {"refused": 1}


@pytest.mark.parametrize("root", ["s3://a-bucket/prefix", ""])
def test_patience_and_settings_apply_to_another_root(tmp_path: Path, root: str) -> None:
    opened = open_store(root or str(tmp_path), patience_s=7.0, settings=HASTY)
    for store in (opened, CountingStore(opened), SpooledStore(opened, tmp_path / "spool")):
        far = store.at("s3://theirs").at("s3://still-another")
        found = far._inner if isinstance(far, CountingStore) else far
        assert isinstance(found, S3Store)
        assert (found.url, found._patience_s, found._settings) == ("s3://still-another", 7.0, HASTY)


@pytest.mark.parametrize("root", ["s3://a-bucket/prefix", ""])
def test_a_store_sent_to_another_process_can_open_other_roots(tmp_path: Path, root: str) -> None:
    sent = pickle.loads(pickle.dumps(open_store(root or str(tmp_path), patience_s=7.0, settings=HASTY)))  # noqa: S301
    found = sent.at("s3://theirs")
    assert (found._patience_s, found._settings) == (7.0, HASTY)


def test_an_invalid_root_is_refused() -> None:
    with pytest.raises(Usage, match="gopher"):
        CountingStore(MemoryStore()).at("gopher://hole/x")
