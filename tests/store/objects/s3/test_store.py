"""S3Store with servers that are slow, unavailable, disconnected or misconfigured, or whose answers are lost."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from slackwater.errors import NotFound, ObjectExists, ObjectNotFound, Refused, Unavailable, Usage
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store
from slackwater.store.versions import history
from slackwater.store.versions.commit import commit

from tests.support.manifests import manifest
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_servers import BUCKET

pytestmark = pytest.mark.s3

SMALL_PARTS = S3Settings(multipart_bytes=5 << 20, part_bytes=5 << 20)


@pytest.fixture
def store(proxy: S3Proxy) -> S3Store:
    """Return a store whose requests go through the proxy."""
    return S3Store(BUCKET, uuid4().hex, endpoint_url=proxy.endpoint, patience_s=20)


REQUESTS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get("there"),
    "get_range": lambda store: store.get_range("there", 1, 2),
    "put": lambda store: store.put("new", b"data"),
    "put_if_absent": lambda store: store.put_if_absent("new", b"data"),
    "list": lambda store: list(store.list("")),
    "list_folders": lambda store: list(store.list_folders("")),
    "delete": lambda store: store.delete("there"),
}


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_request_is_repeated_until_it_is_answered(store: S3Store, proxy: S3Proxy, verb: str) -> None:
    store.put("there", b"data")
    proxy.accidents = ["SlowDown", "drop", "InternalError"]
    REQUESTS[verb](store)
    assert (proxy.accidents, proxy.requests) == ([], 5)


@pytest.fixture
def small_pages(store: S3Store) -> Iterator[None]:
    """Let listings have three entries per page."""

    def three(params: dict[str, object], **_: object) -> dict[str, object]:
        return {**params, "MaxKeys": 3}

    events = store._connect()[0].s3.meta.events
    events.register("provide-client-params.s3.ListObjectsV2", three)
    yield
    events.unregister("provide-client-params.s3.ListObjectsV2", three)


@pytest.mark.usefixtures("small_pages")
def test_listings_have_several_pages(store: S3Store, proxy: S3Proxy) -> None:
    folders = [f"{number:02}" for number in range(10)]
    names = [f"{folder}/{name}" for folder in folders for name in "ab"]
    for name in names:
        store.put(name, b"")
    proxy.seen.clear()
    assert [info.key for info in store.list("")] == names
    assert proxy.requests == 7
    assert [info.key for info in store.list("", "03/a")] == names[7:]
    proxy.seen.clear()
    assert list(store.list_folders("")) == folders
    assert proxy.requests == 4


@pytest.mark.usefixtures("small_pages")
def test_objects_deleted_between_pages_do_not_shift_a_listing(store: S3Store) -> None:
    names = [f"{number:02}" for number in range(10)]
    for name in names:
        store.put(name, b"")
    entries = iter(store.list(""))
    found = [next(entries).key for _ in range(3)]
    for name in names[:5]:
        store.delete(name)
    assert found + [info.key for info in entries] == names[:3] + names[5:]


def test_a_conflict_of_conditional_writes_is_retried(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["ConditionalRequestConflict", "ConditionalRequestConflict"]
    store.put_if_absent("a", b"data")
    assert store.get("a") == b"data"


def test_an_interrupted_answer_is_requested_again(store: S3Store, proxy: S3Proxy) -> None:
    data = bytes(range(256)) * 100
    store.put("a", data)
    proxy.accidents = ["cut", "cut"]
    assert store.get("a") == data
    assert proxy.requests == 4


def test_an_interrupted_error_or_listing_is_requested_again(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["cut"]
    with pytest.raises(ObjectNotFound):
        store.get("absent")
    store.put("a", b"")
    proxy.accidents = ["cut"]
    assert [info.key for info in store.list("")] == ["a"]
    proxy.accidents = ["cut"]
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", b"other")
    assert proxy.requests == 7


def test_a_create_whose_answer_was_lost_finds_its_own_object(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["lose"]
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", b"mine")
    assert store.get("a") == b"mine"


def test_a_commit_whose_answer_was_lost_is_recognised(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["lose"]
    commit(store, manifest(1))
    assert list(history.iter_after(store, "app", "stage", 0)) == [manifest(1)]
    # Create, create again, read back, look for a boundary; then, with v1 in memory, look for v2.
    assert proxy.requests == 5


def test_an_absent_object_is_absent_after_an_outage(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["drop"]
    with pytest.raises(ObjectNotFound):
        store.get("a")


def test_a_server_that_stays_down_is_named_without_credentials(s3_server: str) -> None:
    port = choose_port()
    store = S3Store(BUCKET, endpoint_url=f"http://user:word@127.0.0.1:{port}", patience_s=0.2)
    with pytest.raises(Unavailable) as caught:
        store.get("a")
    assert f"S3 at http://127.0.0.1:{port}, bucket {BUCKET!r}, did not answer" in str(caught.value)
    assert "cannot connect" in str(caught.value)
    for secret in ("user", "word", "tests-secret"):
        assert secret not in str(caught.value)
    assert caught.value.hint


def test_a_server_that_never_answers_is_given_up(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["hang"] * 100
    hasty = S3Store(BUCKET, endpoint_url=proxy.endpoint, patience_s=0.1, settings=S3Settings(read_timeout_s=0.05))
    with pytest.raises(Unavailable, match="no answer in time"):
        hasty.get("a")


def test_an_answer_that_arrives_too_slowly_is_given_up(store: S3Store, proxy: S3Proxy) -> None:
    store.put("a", bytes(30))
    proxy.accidents = ["drip"] * 100
    hasty = S3Store(
        BUCKET,
        store.url.rpartition("/")[2],
        endpoint_url=proxy.endpoint,
        patience_s=0.1,
        settings=S3Settings(attempt_timeout_s=0.1),
    )
    for read in (lambda: hasty.get("a"), lambda: hasty.get_range("a", 0, 25)):
        with pytest.raises(Unavailable, match="the answer takes too long to arrive"):
            read()


def test_a_server_that_is_overloaded_for_too_long_is_unavailable(store: S3Store, proxy: S3Proxy) -> None:
    hasty = S3Store(BUCKET, endpoint_url=proxy.endpoint, patience_s=0.1)
    proxy.accidents = ["SlowDown"] * 1000
    with pytest.raises(Unavailable, match="503 SlowDown"):
        hasty.put("a", b"")
    assert 2 <= proxy.requests < 100


def test_all_stores_of_a_process_share_one_retry_budget(each_s3: str, proxy: S3Proxy) -> None:
    settings = S3Settings(retries_at_once=5, retries_per_s=0.001)
    stores = [S3Store(BUCKET, str(n), endpoint_url=proxy.endpoint, patience_s=1, settings=settings) for n in range(8)]
    proxy.overloaded = True

    def ask(store: S3Store) -> None:
        with pytest.raises(Unavailable):
            store.get("a")

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(ask, stores))
    # Each asks once at first and once at last.
    assert 2 * len(stores) <= proxy.requests <= 2 * len(stores) + 5


def test_a_missing_bucket_is_reported_with_the_command_to_create_it(each_s3: str) -> None:
    store = S3Store("no-such-bucket", "p", settings=SMALL_PARTS)
    for request in (
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        lambda: store.put_if_absent("a", b""),
        lambda: list(store.list("")),
        lambda: list(store.list_folders("")),
        lambda: store.delete("a"),
        lambda: store.put("a", bytes(6 << 20)),
        lambda: list(store.unfinished_writes("")),
    ):
        with pytest.raises(NotFound) as caught:
            request()
        assert str(caught.value) == (f"no bucket named 'no-such-bucket'; the S3 server at {each_s3} does not have it")
        assert "aws s3 mb s3://no-such-bucket" in caught.value.hint


@pytest.mark.parametrize(
    ("accident", "words", "hint"),
    [
        ("InvalidAccessKeyId", "refused the credentials or the request", "set AWS_ACCESS_KEY_ID"),
        ("AuthorizationHeaderMalformed", "belongs to another region", "set AWS_REGION"),
        ("NotImplemented", "answered 501 NotImplemented", ""),
        ("InvalidRequest", "answered 400 InvalidRequest: So it is.", ""),
    ],
)
def test_a_permanent_error_is_not_retried(store: S3Store, proxy: S3Proxy, accident: str, words: str, hint: str) -> None:
    proxy.accidents = [accident]
    with pytest.raises(Refused, match=words) as caught:
        store.get("a")
    assert proxy.endpoint in str(caught.value)
    assert "tests-secret" not in str(caught.value)
    assert hint in caught.value.hint
    assert proxy.requests == 1


def test_a_404_that_is_not_from_s3_does_not_count_as_an_absent_object(store: S3Store, proxy: S3Proxy) -> None:
    # A web server that knows no such page, and a bucket of another kind.
    proxy.accidents = ["NoSuchPage", "NoSuchUpload"]
    for _ in range(2):
        with pytest.raises(Refused, match="answered 404"):
            store.get("a")


def test_credentials_unknown_to_the_server_are_reported(versitygw_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # This server answers with 404.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(Refused, match="refused the credentials") as caught:
        S3Store(BUCKET, endpoint_url=versitygw_server).get("a")
    assert "set AWS_ACCESS_KEY_ID" in caught.value.hint


def test_missing_credentials_are_reported(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Refused, match="no credentials for") as caught:
        S3Store(BUCKET).get("a")
    assert "set AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_missing_profile_is_reported(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Refused, match="nobody"):
        S3Store(BUCKET).get("a")


def test_an_endpoint_that_is_no_url_is_refused(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:word@")
    with pytest.raises(Usage, match="endpoint is not a URL") as caught:
        S3Store(BUCKET).get("a")
    assert "http://host:port" in caught.value.hint
    assert "word" not in str(caught.value)


FORK = """
import os, sys
from slackwater.store.objects.open import open_store

# A request that meets the answer to another process's breaks its connection; nothing is repeated here.
store = open_store(sys.argv[1], patience_s=0)
store.put("a", b"data")
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        for turn in range(10):
            assert store.get("a") == b"data"
            store.put(f"{number}/{turn}", b"")
        os._exit(0)
    children.append(pid)
for _ in range(10):
    assert store.get("a") == b"data"
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
assert len(list(store.list(""))) == 41
"""


def test_forked_processes_do_not_share_connections(proxy: S3Proxy) -> None:
    # The proxy keeps connections open, which moto behind it does not.
    environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
    root = f"s3://{BUCKET}/{uuid4().hex}"
    subprocess.run([sys.executable, "-c", FORK, root], check=True, timeout=120, env=environment)
