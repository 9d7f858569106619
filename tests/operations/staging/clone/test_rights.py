"""A clone cannot write to production: with the documented S3 policy, all other requests are refused."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from slackwater.store.objects.local import LocalStore

from tests.cli.verbs.calling import MODULE
from tests.operations.staging.clone.test_mask import people
from tests.support.s3_servers import ACCESS_KEY, SECRET_KEY, versitygw

pytestmark = pytest.mark.s3

PRODUCTION, STAGING = "production", "staging"
USER, USERS_SECRET = "staging-user", "staging-user-secret"
READS = (("s3:ListBucket", ""), ("s3:GetObject", "/state/*"))
PINS = (["s3:PutObject", "s3:DeleteObject"], "/state/*/snapshots/clone-*")


class Buckets:
    """The bucket of staging and that of production; in production's, staging's user has only the rights of a policy."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.s3 = self.client(ACCESS_KEY, SECRET_KEY)
        for bucket in (PRODUCTION, STAGING):
            self.s3.create_bucket(Bucket=bucket)
        self.policy(STAGING, ("s3:ListBucket", ""), (["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], "/*"))

    def client(self, key: str, secret: str) -> Any:
        made = {"aws_access_key_id": key, "aws_secret_access_key": secret, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.endpoint, **made)

    def policy(self, bucket: str, *allowed: tuple[str | list[str], str]) -> None:
        """Allow actions on the bucket (name only) or on objects (`/` and a pattern)."""
        said = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [USER]},
                "Action": actions,
                "Resource": f"arn:aws:s3:::{bucket}{behind}",
            }
            for actions, behind in allowed
        ]
        self.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": said}))

    def objects(self, bucket: str) -> dict[str, str]:
        return {each["Key"]: each["ETag"] for each in self.s3.list_objects_v2(Bucket=bucket).get("Contents", ())}

    def slackwater(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb as the user of staging."""
        mine = {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": USERS_SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "SLACKWATER_KAFKA": "memory://rights",
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | mine
        return subprocess.run([*MODULE, *words], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buckets]:
    folder = tmp_path_factory.mktemp("rights")
    with versitygw(folder, users={USER: USERS_SECRET}) as endpoint:
        made = Buckets(endpoint)
        store = LocalStore(folder / "written")
        people(store, [[(1, "ada", 7, b"x", 1, 0)], [(2, "eve", 8, b"y", 2, 0)]])
        for info in store.list(""):
            made.s3.put_object(Bucket=PRODUCTION, Key=f"state/{info.key}", Body=store.get(info.key))
        yield made


def test_with_read_access_to_production_only_a_deep_clone_is_suggested_and_works(
    buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path))
    buckets.policy(PRODUCTION, *READS)
    before = buckets.objects(PRODUCTION)
    words = ("clone", "crm", "crm-copy", "--store", f"s3://{PRODUCTION}/state", "--to", f"s3://{STAGING}/deep")
    refused = buckets.slackwater(*words)
    assert refused.returncode == 1
    assert "error: the moment of crm cannot be pinned under s3://production/state" in refused.stderr
    assert "--deep --to ROOT" in refused.stderr
    assert not any(key.startswith("deep/") for key in buckets.objects(STAGING))
    made = buckets.slackwater(*words, "--deep")
    assert made.returncode == 0, made.stderr
    assert buckets.objects(PRODUCTION) == before
    whole = buckets.slackwater("verify", "crm-copy", "--store", f"s3://{STAGING}/deep")
    assert whole.returncode == 0, whole.stdout


@pytest.mark.ci  # who removes a clone waits until nobody writes to it any more
def test_cloning_writes_only_the_pinning_snapshot_to_production(
    buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path))
    buckets.policy(PRODUCTION, *READS, PINS)
    before, there = buckets.objects(PRODUCTION), f"s3://{STAGING}/state"
    words = ("clone", "crm", "crm-staging", "--store", f"s3://{PRODUCTION}/state", "--to", there, "--reason", "a try")
    for _ in range(2):
        made = buckets.slackwater(*words)
        assert made.returncode == 0, made.stderr
    new = buckets.objects(PRODUCTION).keys() - before.keys()
    assert new == {"state/crm/snapshots/clone-crm-staging.json"}
    # What the clone does from now on, it does at home.
    assert buckets.slackwater("compact", "crm-staging", "--full", "--store", there).returncode == 0
    rows = buckets.slackwater("query", "crm-staging", "SELECT count(*) AS n FROM people", "--json", "--store", there)
    assert json.loads(rows.stdout)["rows"] == [{"n": 2}]
    after = buckets.objects(PRODUCTION)
    assert {key: after[key] for key in before} == before
    user = buckets.client(USER, USERS_SECRET)
    for key in before:
        with pytest.raises(user.exceptions.ClientError, match="AccessDenied"):
            user.put_object(Bucket=PRODUCTION, Key=key, Body=b"")
        with pytest.raises(user.exceptions.ClientError, match="AccessDenied"):
            user.delete_object(Bucket=PRODUCTION, Key=key)
    gone = buckets.slackwater("clone", "rm", "crm-staging", "--store", there)
    assert gone.returncode == 0, gone.stderr
    assert buckets.objects(PRODUCTION) == before, "nothing is left pinned"
