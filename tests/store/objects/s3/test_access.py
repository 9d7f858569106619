"""S3 credentials and endpoints reach processes without AWS settings, such as tasks on other machines."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from slackwater.errors import Refused
from slackwater.store.objects import s3_client
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store, s3_access_for_others, use_s3_access
from slackwater.store.objects.s3_settings import S3Access, S3Credentials, S3Settings
from slackwater.store.objects.s3_store import S3Store

from tests.support.s3_servers import BUCKET, signed

ACCESS_KEY, SECRET_KEY, TOKEN = "AKIA0HANDEDOVER", "hushhushhandedover", "hushhushtoken"
OTHERS = {
    "AWS_PROFILE": "nobody",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
}
"""Settings of another machine, which all differ from the driver's."""

_TASK = """
import json, os, pickle, sys
from slackwater.store.objects.open import open_store, use_s3_access
url, access = pickle.load(sys.stdin.buffer)
# At first with nothing of AWS's, and then with what is another's.
for others in ({}, json.loads(sys.argv[1])):
    os.environ.update(others)
    store = open_store(url, patience_s=10, client_config=use_s3_access(access))
    store.put("from-a-task", b"here")
    print(store.get("from-a-driver").decode())
"""


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Remove all AWS variables except these."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def access(key: str = ACCESS_KEY, token: str = "") -> S3Access:
    with environment(
        AWS_ACCESS_KEY_ID=key,
        AWS_SECRET_ACCESS_KEY=SECRET_KEY,
        AWS_SESSION_TOKEN=token,
        AWS_REGION="eu-west-1",
        AWS_ENDPOINT_URL="http://user:password@127.0.0.1:2",
    ):
        found = s3_access_for_others(S3Store(BUCKET, settings=S3Settings(sse="AES256")))
    assert found is not None
    return found


def signs_with(store: object) -> tuple[str | None, ...]:
    assert isinstance(store, S3Store)
    now = store._connect()[0].credentials
    assert now is not None
    frozen = now.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


@pytest.mark.s3
def test_a_process_without_settings_gets_the_access_of_the_driver(
    aws_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "credentials"
    config.write_text(f"[production]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    folder = tmp_path / "s3"
    folder.mkdir()
    with signed(folder, ACCESS_KEY, SECRET_KEY) as endpoint:
        known = {"AWS_SHARED_CREDENTIALS_FILE": str(config), "AWS_PROFILE": "production", "AWS_REGION": "us-east-1"}
        with environment(AWS_ENDPOINT_URL=endpoint, **known):
            store = open_store(f"s3://{BUCKET}/{uuid4().hex}", patience_s=10)
            assert isinstance(store, S3Store)
            store._connect()[0].s3.create_bucket(Bucket=BUCKET)
            store.put("from-a-driver", b"there")
            handed = pickle.dumps((store.url, s3_access_for_others(store)))
            bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
            task = subprocess.run(
                [sys.executable, "-c", _TASK, json.dumps(OTHERS)],
                input=handed,
                capture_output=True,
                env={**bare, "HOME": str(tmp_path)},
                check=False,
            )
            assert (task.returncode, task.stdout) == (0, b"there\nthere\n"), task.stderr
            assert store.get("from-a-task") == b"here"


def test_the_passed_access_hides_its_secrets_in_text_and_can_be_pickled() -> None:
    found = access(token=TOKEN)
    for secret in (ACCESS_KEY, SECRET_KEY, TOKEN, "password"):
        assert secret not in repr(found) + str(found)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    assert found.credentials == S3Credentials(ACCESS_KEY, SECRET_KEY, TOKEN)
    place = found.client_config
    assert (place.endpoint_url, place.region) == ("http://127.0.0.1:2", "eu-west-1")
    assert place.settings == S3Settings(sse="AES256")


def test_for_aws_only_the_region_is_passed_and_buckets_are_part_of_the_host_name() -> None:
    with environment(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION="eu-west-1"):
        found = s3_access_for_others(S3Store("a-bucket"))
    assert found is not None
    assert found.client_config.endpoint_url == ""
    with environment(**OTHERS):
        store = open_store("s3://a-bucket", client_config=use_s3_access(found))
        assert isinstance(store, S3Store)
        s3 = store._connect()[0].s3
        url = s3.generate_presigned_url("get_object", Params={"Bucket": "a-bucket", "Key": "k"})
    assert url.startswith("https://a-bucket.s3.")
    assert s3.meta.region_name == "eu-west-1"


def test_new_credentials_are_used_by_existing_clients_and_no_client_is_added() -> None:
    first = access()
    store = open_store(f"s3://{BUCKET}", client_config=use_s3_access(first))
    assert signs_with(store) == (ACCESS_KEY, SECRET_KEY, None)
    before = len(s3_client._connections)
    for n in range(50):
        renewed = replace(first, credentials=S3Credentials(f"key-{n}", f"secret-{n}", f"token-{n}"))
        again = open_store(f"s3://{BUCKET}", client_config=use_s3_access(renewed))
        assert signs_with(store) == signs_with(again) == (f"key-{n}", f"secret-{n}", f"token-{n}")
    assert len(s3_client._connections) == before


def test_a_driver_passes_its_current_credentials(tmp_path: Path) -> None:
    # AWS's own way to temporary credentials that renew themselves: a program that tells them.
    told, program, config = tmp_path / "told", tmp_path / "tell.py", tmp_path / "config"
    program.write_text(f"print(open({str(told)!r}).read())")
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")

    def tell(key: str, lasts: timedelta) -> None:
        ends = (datetime.now(UTC) + lasts).isoformat()
        words = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": key, "Expiration": ends}
        told.write_text(json.dumps(words))

    # Renewed a quarter of an hour before they end, so that those of a batch last for as long as it.
    tell("first", timedelta(minutes=5))
    with environment(AWS_CONFIG_FILE=str(config), AWS_REGION="us-east-1"):
        store = S3Store(BUCKET, str(uuid4()))
        tell("second", timedelta(hours=1))
        for _ in range(2):
            found = s3_access_for_others(store)
            assert found is not None
            assert found.credentials == S3Credentials("second", "s", "second")


def test_a_certificate_file_that_a_worker_lacks_is_named(tmp_path: Path) -> None:
    found = access()
    absent = replace(found, client_config=replace(found.client_config, ca_bundle=str(tmp_path / "company.pem")))
    with pytest.raises(Refused, match=r"has no file .*company\.pem, which AWS_CA_BUNDLE names") as refused:
        open_store(f"s3://{BUCKET}", client_config=use_s3_access(absent)).get("a")
    assert "each machine" in refused.value.hint


def test_nothing_is_passed_for_other_stores_or_without_credentials(tmp_path: Path) -> None:
    assert s3_access_for_others(open_store(str(tmp_path))) is None
    assert s3_access_for_others(MemoryStore()) is None
    nowhere = {name: str(tmp_path / "none") for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")}
    with environment(AWS_EC2_METADATA_DISABLED="true", **nowhere):
        assert s3_access_for_others(S3Store(BUCKET)) is None
    assert use_s3_access(None) is None


def test_a_store_is_pickled_without_its_credentials() -> None:
    store = open_store(f"s3://{BUCKET}/a", client_config=use_s3_access(access()))
    data = pickle.dumps(store)
    assert SECRET_KEY.encode() not in data
    assert signs_with(pickle.loads(data)) == (ACCESS_KEY, SECRET_KEY, None)  # noqa: S301
