"""Logins to Kafka without a broker: secrets in files, and tokens for MSK."""

import json
import os
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from botocore.exceptions import ClientError, MetadataRetrievalError
from hypothesis import example, given
from hypothesis import strategies as st
from slackwater.common import instants
from slackwater.common.secret_file import SecretFile
from slackwater.errors import Refused, SlackwaterError, Unavailable, Usage
from slackwater.pipeline.kafka.login import Login
from slackwater.pipeline.kafka.msk_iam import LIFETIME_S, MskTokens
from slackwater.pipeline.kafka.open import open_kafka

from tests.pipeline.kafka.msk_gate import end_of, is_signed, signed_fields
from tests.store.objects.s3.test_access import environment

BROKERS = "b-1.flights.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
KEY, SECRET = "AKIA0MSK", "hush7hush7secretkey"
MSK = {"bootstrap.servers": BROKERS, "slackwater.auth": "msk-iam"}


@pytest.fixture
def no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the AWS configuration of this machine.

    Uses the test's own `monkeypatch`: if another one ended first, this one would delete what that one had restored.
    """
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@given(key=st.from_regex(r"[A-Z0-9]{4,20}", fullmatch=True), secret=_TEXT, session=st.one_of(st.just(""), _TEXT))
@example(key=KEY, secret="/+=", session="a/b+c==&d")
def test_a_token_is_a_presigned_url_with_the_signature_of_aws(key: str, secret: str, session: str) -> None:
    with environment(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret, AWS_SESSION_TOKEN=session):
        began_s = instants.now_ms() / 1000
        token, expires_s = MskTokens(BROKERS).new()
    assert is_signed(token, {key: secret})
    assert not is_signed(token, {key: f"{secret}x"})
    fields = signed_fields(token)
    assert fields.get("X-Amz-Security-Token", "") == session
    assert fields["X-Amz-Expires"] == str(LIFETIME_S)
    # Kafka's client renews a token by this time, which must not be after its end.
    assert began_s + LIFETIME_S - 1 <= expires_s <= end_of(token)


@pytest.mark.parametrize(
    ("brokers", "variables", "region"),
    [
        (BROKERS, {"AWS_REGION": "us-east-1"}, "eu-west-1"),
        ("boot-x1.c1.kafka-serverless.us-west-2.amazonaws.com:9098", {}, "us-west-2"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn:9098,b-2:9098", {}, "cn-north-1"),
        ("kafka.example.com:9098", {"AWS_REGION": "eu-central-1"}, "eu-central-1"),
        ("kafka.example.com:9098", {"AWS_DEFAULT_REGION": "eu-central-2"}, "eu-central-2"),
    ],
)
@pytest.mark.usefixtures("no_aws")
def test_the_region_is_that_of_the_brokers_names_or_else_this_machines(
    brokers: str, variables: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**variables, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
    token, _ = MskTokens(brokers).new()
    assert signed_fields(token)["X-Amz-Credential"].split("/")[2] == region
    assert is_signed(token, {KEY: SECRET})


@pytest.mark.parametrize(
    ("variables", "brokers", "sentence", "hint"),
    [
        ({}, BROKERS, f"cannot make a token for Kafka at {BROKERS}: Unable to locate credentials", "AWS_PROFILE"),
        ({"AWS_PROFILE": "nobody"}, BROKERS, "The config profile (nobody) could not be found", "AWS_PROFILE"),
        (
            {"AWS_ACCESS_KEY_ID": KEY},
            BROKERS,
            "Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
            "kafka.example.com:9098",
            "a token for Kafka at kafka.example.com:9098 needs the cluster's AWS region",
            "set AWS_REGION",
        ),
    ],
)
@pytest.mark.usefixtures("no_aws")
def test_a_token_that_cannot_be_made_is_explained_before_any_request(
    variables: dict[str, str], brokers: str, sentence: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SlackwaterError) as caught:
        open_kafka({**MSK, "bootstrap.servers": brokers}).partition_counts()
    assert sentence in caught.value.message
    assert hint in caught.value.hint
    assert SECRET not in caught.value.message


_ROLE = {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/app"}
_CONTAINER = "AWS_CONTAINER_CREDENTIALS_FULL_URI"


@pytest.mark.parametrize(
    ("variables", "kind", "sentence"),
    [
        ({**_ROLE, "AWS_ENDPOINT_URL_STS": "http://bob:hush@127.0.0.1:1"}, Unavailable, ": cannot connect"),
        ({**_ROLE, "AWS_ENDPOINT_URL_STS": "bob:hush@host"}, Refused, "Invalid endpoint: ***@host"),
        ({**_ROLE, "AWS_ENDPOINT_URL_STS": "http://bob:a hush@ho st"}, Refused, "Invalid endpoint: http://***@ho st"),
        ({**_ROLE, "AWS_ENDPOINT_URL_STS": "http://bob:hush@[::1"}, Refused, "Invalid IPv6 URL"),
        ({**_ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token"}, Refused, "No such file or directory"),
        ({_CONTAINER: "http://127.0.0.1:1/creds?secret=hush"}, Unavailable, "http://127.0.0.1:1/creds"),
        ({_CONTAINER: "http://bob:hush@example.com/creds"}, Refused, "Unsupported host"),
    ],
)
@pytest.mark.usefixtures("no_aws")
def test_no_error_of_a_server_of_credentials_reveals_a_secret(
    variables: dict[str, str],
    kind: type[SlackwaterError],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 40)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    for name, value in ({"AWS_WEB_IDENTITY_TOKEN_FILE": str(token)} | variables).items():
        if name != "AWS_WEB_IDENTITY_TOKEN_FILE" or _CONTAINER not in variables:
            monkeypatch.setenv(name, value)
    with pytest.raises(kind) as caught:
        Login(MSK).properties()
    assert sentence in caught.value.message
    assert "hush" not in "".join(traceback.format_exception(caught.value)) + caplog.text


def answer(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "AssumeRole")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer(500, "InternalFailure"), Unavailable),
        (answer(400, "Throttling"), Unavailable),
        (answer(403, "AccessDenied"), Refused),
        (MetadataRetrievalError(error_msg="Received non 200 response 500"), Unavailable),
        (RuntimeError("the refreshed credentials are still expired"), Refused),
    ],
)
@pytest.mark.usefixtures("no_aws")
def test_an_error_of_a_server_of_credentials_that_passes_is_an_outage(
    error: Exception, kind: type[SlackwaterError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("botocore.session.Session.get_credentials", fail)
    with pytest.raises(kind, match="cannot make a token for Kafka at"):
        MskTokens(BROKERS)


@pytest.fixture
def vault(no_aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a program that prints credentials, valid for ten minutes, which boto3 then renews.

    The program fails as long as the returned file is not empty.
    """
    calls, sealed, program = tmp_path / "calls", tmp_path / "sealed", tmp_path / "credentials.py"
    calls.touch()
    sealed.touch()
    ends = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    program.write_text(
        f"import json, pathlib, sys\ncalls = pathlib.Path({str(calls)!r})\ncalls.write_text(calls.read_text() + 'x')\n"
        f"sys.exit(pathlib.Path({str(sealed)!r}).read_text()) if pathlib.Path({str(sealed)!r}).read_text() else None\n"
        f"key = 'AKIA' + str(len(calls.read_text()))\n"
        f"names = ('AccessKeyId', 'SecretAccessKey', 'SessionToken')\n"
        f"print(json.dumps(dict.fromkeys(names, key) | dict(Version=1, Expiration={ends!r})))"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return sealed


@pytest.mark.usefixtures("vault")
def test_temporary_credentials_are_renewed_for_the_next_token() -> None:
    tokens = MskTokens(BROKERS)
    users = [signed_fields(tokens.new()[0])["X-Amz-Security-Token"] for _ in range(3)]
    assert len(set(users)) == 3
    assert all(is_signed(tokens.new()[0], {f"AKIA{n}": f"AKIA{n}" for n in range(20)}) for _ in range(2))


def test_a_token_that_cannot_be_renewed_is_warned_about_once_and_explained(
    vault: Path, caplog: pytest.LogCaptureFixture
) -> None:
    login = Login(MSK)
    renew = login.properties()["oauth_cb"]
    assert callable(renew)
    vault.write_text("the vault\nis sealed")
    sentence = (
        f"cannot make a token for Kafka at {BROKERS}: Error when retrieving credentials from custom-process: the "
    )
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            renew("")
        assert f"{sentence}vault is sealed" in caught.value.message
        assert login.token_error is caught.value
    assert "Traceback" not in caplog.text  # it would have the URL of a server of credentials
    assert [record.message for record in caplog.records if sentence in record.message] == [
        f"{caught.value.message}; the open connections stay until the last token ends"
    ]
    vault.write_text("")
    token, _ = renew("")
    assert signed_fields(token)["X-Amz-Security-Token"].startswith("AKIA")
    assert login.token_error is None


@given(st.lists(st.sampled_from(["one", "two\n", "three\r\n", " four ", "", "\n", "\0", None]), max_size=12))
def test_a_secret_file_gives_its_last_usable_content(contents: list[str | None]) -> None:
    with TemporaryDirectory() as folder:
        path, expected = Path(folder) / "secret", ""
        file = SecretFile(str(path), "Kafka's sasl.password", "sasl.password.file")
        for content in contents:
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content.encode())
            text = (content or "").removesuffix("\n").removesuffix("\r")
            expected = text if text and "\0" not in text else expected
            if expected:
                assert file.read() == expected
            else:
                with pytest.raises(Refused, match=r"cannot read Kafka's sasl\.password from .*secret: "):
                    file.read()


def test_a_secret_file_is_read_again_when_it_is_replaced_or_rewritten(tmp_path: Path) -> None:
    # As Kubernetes mounts a secret: links to a folder that is replaced.
    for name, password in (("first", "aaaa"), ("second", "bbbb")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "password").write_text(password)
    link, path = tmp_path / "data", tmp_path / "password"
    link.symlink_to("first")
    path.symlink_to("data/password")
    file = SecretFile(str(path), "p", "s")
    assert file.read() == "aaaa"
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(link)
    assert file.read() == "bbbb"
    path.write_text("cccccc")
    assert file.read() == "cccccc"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "it is empty"),
        (b"hush\xff", "it is not text"),
        (b"hu\0sh", "zero byte"),
        (b"x" * (1 << 20 | 1), "it is too large"),
    ],
)
def test_a_secret_file_that_was_never_usable_is_explained_without_its_content(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    login = Login({"bootstrap.servers": "b:1", "sasl.password.file": str(path)})
    with pytest.raises(Refused) as caught:
        login.properties()
    assert f"cannot read Kafka's sasl.password from {path}: " in caught.value.message
    assert reason in caught.value.message
    assert "hush" not in caught.value.message
    assert "sasl.password.file" in caught.value.hint


def test_a_pipe_or_a_folder_in_place_of_a_secret_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(Refused, match="it is not a regular file"):
            SecretFile(str(path), "Kafka's sasl.password", "sasl.password.file").read()


def test_slackwaters_own_properties_do_not_reach_librdkafka_and_librdkafkas_files_do(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    kept = {"sasl.oauthbearer.assertion.file": "a.jwt", "ssl.ca.location": "ca.pem"}
    given_files = {"sasl.oauthbearer.client.secret.file": str(secret)}
    login = Login({"bootstrap.servers": "b:1", **kept, **given_files})
    assert login.properties() == {"bootstrap.servers": "b:1", **kept, "sasl.oauthbearer.client.secret": "hush"}


@pytest.mark.usefixtures("no_aws")
def test_msk_has_properties_of_its_own_which_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    properties = Login({**MSK, "socket.timeout.ms": "5000"}).properties()
    token, _ = properties.pop("oauth_cb")("")  # type: ignore[operator]
    assert is_signed(token, {KEY: SECRET})
    logs_in = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}
    assert properties == {"bootstrap.servers": BROKERS, "socket.timeout.ms": "5000", **logs_in}
    assert Login({**MSK, "security.protocol": "SASL_PLAINTEXT"}).properties()["security.protocol"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"slackwater.auth": "msk"}, "Kafka's setting auth is 'msk': expected 'msk-iam'"),
        (
            {"sasl.password": "hush", "sasl.password.file": "/run/password"},
            "Kafka's property sasl.password has both a value and a file, /run/password",
        ),
    ],
)
def test_an_impossible_login_is_refused_at_once(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(Usage) as caught:
        open_kafka({"bootstrap.servers": "b:1", **properties})
    assert sentence in caught.value.message
    assert "hush" not in json.dumps([caught.value.message, caught.value.hint])
