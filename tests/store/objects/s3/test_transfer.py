"""Large objects in S3 are transferred in parts, completely or not at all, even if parts fail."""

import random
from uuid import uuid4

import pytest
from slackwater.errors import Refused, Unavailable
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store

from tests.support.s3_proxy import S3Proxy
from tests.support.s3_servers import BUCKET

pytestmark = pytest.mark.s3

PART = 5 << 20
SETTINGS = S3Settings(multipart_bytes=PART, part_bytes=PART, parallel_parts=3)
DATA = random.Random(1).randbytes(3 * PART + 17)


@pytest.fixture
def store(proxy: S3Proxy) -> S3Store:
    return S3Store(BUCKET, uuid4().hex, endpoint_url=proxy.endpoint, patience_s=20, settings=SETTINGS)


def hasty(store: S3Store, proxy: S3Proxy) -> S3Store:
    """Return the same store with shorter retries."""
    prefix = store.url.rpartition("/")[2]
    return S3Store(BUCKET, prefix, endpoint_url=proxy.endpoint, patience_s=0.2, settings=SETTINGS)


def verbs(proxy: S3Proxy) -> list[str]:
    return [request.split(" ")[0] for request in proxy.seen]


def test_a_large_object_is_written_and_read_in_parts(store: S3Store, proxy: S3Proxy) -> None:
    store.put("a", DATA)
    # Begun, four parts, completed.
    assert sorted(verbs(proxy)) == ["POST", "POST", "PUT", "PUT", "PUT", "PUT"]
    proxy.seen.clear()
    assert store.get("a") == DATA
    assert verbs(proxy) == ["GET"] * 4
    assert store.get_range("a", PART - 3, PART + 6) == DATA[PART - 3 : 2 * PART + 3]
    assert [(info.key, info.size_bytes) for info in store.list("")] == [("a", len(DATA))]
    assert list(store.unfinished_writes("")) == []


def test_an_object_of_one_part_takes_one_request(store: S3Store, proxy: S3Proxy) -> None:
    store.put("a", DATA[:PART])
    assert store.get("a") == DATA[:PART]
    assert verbs(proxy) == ["PUT", "GET"]


def test_a_buffer_changed_after_a_put_does_not_change_the_object(store: S3Store) -> None:
    buffer = bytearray(DATA)
    store.put("a", buffer)
    buffer[:10] = bytes(10)
    assert store.get("a") == DATA


@pytest.mark.parametrize("accident", ["SlowDown", "drop", "lose"])
def test_every_request_of_an_upload_is_retried_separately(store: S3Store, proxy: S3Proxy, accident: str) -> None:
    # Begin, a part, another, the last one, complete: each meets an accident, and no part is sent three times.
    proxy.accidents = [accident, "", accident, "", accident, "", "", "", accident]
    store.put("a", DATA)
    assert store.get("a") == DATA
    assert sum(request.startswith("PUT") for request in proxy.seen) <= 4 + 3


def test_a_failed_part_of_a_read_is_requested_again(store: S3Store, proxy: S3Proxy) -> None:
    store.put("a", DATA)
    proxy.seen.clear()
    proxy.accidents = ["cut", "", "cut", "SlowDown"]
    assert store.get("a") == DATA
    assert verbs(proxy) == ["GET"] * 7


def test_an_object_overwritten_during_a_read_is_never_returned_mixed(store: S3Store, proxy: S3Proxy) -> None:
    other = DATA[::-1]
    store.put("a", DATA)
    proxy.accidents = ["", "PreconditionFailed"]
    assert store.get("a") == DATA
    store.put("a", other)
    assert store.get("a") == other


def test_a_refused_upload_leaves_nothing(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["", "", "InvalidRequest"]
    with pytest.raises(Refused, match="answered 400 InvalidRequest"):
        store.put("a", DATA)
    assert proxy.seen[-1].startswith("DELETE")
    assert (list(store.list("")), list(store.unfinished_writes(""))) == ([], [])


def test_an_upload_to_a_server_that_goes_down_ends_and_its_leftovers_are_found_later(
    store: S3Store, proxy: S3Proxy
) -> None:
    proxy.accidents = ["", "", *["drop"] * 1000]
    with pytest.raises(Unavailable, match="did not answer"):
        hasty(store, proxy).put("a", DATA)
    proxy.accidents = []
    (leftover,) = store.unfinished_writes("")
    assert (leftover.key, list(store.list(""))) == ("a", [])
    store.discard(leftover)
    store.discard(leftover)
    assert list(store.unfinished_writes("")) == []


def test_an_upload_that_is_aborted_by_others_is_restarted(store: S3Store, proxy: S3Proxy) -> None:
    proxy.accidents = ["", "", "", "", "", "NoSuchUpload"]
    store.put("a", DATA)
    assert store.get("a") == DATA
    proxy.accidents = ["", "NoSuchUpload"] * 3
    with pytest.raises(Refused, match="was aborted 3 times"):
        S3Store(BUCKET, endpoint_url=proxy.endpoint, settings=S3Settings(parallel_parts=1, multipart_bytes=PART)).put(
            "b", DATA
        )


def test_leftovers_on_more_than_one_page_are_all_found(store: S3Store) -> None:
    s3 = store._connect()[0].s3
    for number in range(5):
        s3.create_multipart_upload(Bucket=BUCKET, Key=f"{store.url.rpartition('/')[2]}/{number // 2}")

    def two(params: dict[str, object], **_: object) -> dict[str, object]:
        return {**params, "MaxUploads": 2}

    s3.meta.events.register("provide-client-params.s3.ListMultipartUploads", two)
    try:
        assert [leftover.key for leftover in store.unfinished_writes("")] == ["0", "0", "1", "1", "2"]
    finally:
        s3.meta.events.unregister("provide-client-params.s3.ListMultipartUploads", two)
