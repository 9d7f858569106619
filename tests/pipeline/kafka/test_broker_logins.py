"""Logins to a real broker: tokens are renewed, and passwords and secrets change while clients run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from slackwater.errors import SlackwaterError
from slackwater.pipeline.dev.jvm_server import HOST
from slackwater.pipeline.kafka import msk_iam
from slackwater.pipeline.kafka.messages import send_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka, TransactionFailed, TransactionSettings

from tests.pipeline.kafka.msk_gate import MskGate
from tests.pipeline.kafka.oidc_server import OidcServer, oidc_server
from tests.pipeline.kafka.secured import GuardedKafka, login_module
from tests.store.objects.s3.test_access import environment
from tests.support.running import Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.ci]

KEYS, SECRET, PASSWORD = ("AKIA0MSKA", "AKIA0MSKB", "AKIA0MSKC"), "hush7hush7secretkey", "hush7hush7password"
"""Access keys, one for each test, and the secrets that all tests use."""
_SESSION_S = 3.0
_MECHANISMS = (
    "sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER",
    login_module("scram-sha-256"),
    login_module("oauthbearer", 'unsecuredLoginStringClaim_sub="broker"'),
    f"connections.max.reauth.ms={_SESSION_S * 1000:.0f}",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with GuardedKafka(tmp_path_factory.mktemp("guarded"), _MECHANISMS) as broker:
        yield broker


@pytest.fixture
def oidc() -> Iterator[OidcServer]:
    with oidc_server(PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GuardedKafka, MskGate]]:
    with MskGate(dict.fromkeys(KEYS, SECRET)) as gate:
        broker = GuardedKafka(tmp_path_factory.mktemp("msk"), (), protocol="PLAINTEXT", door=gate.port)
        gate.upstream = broker.listener_port
        with broker:
            yield broker, gate


@pytest.fixture
def gate(gated: tuple[GuardedKafka, MskGate]) -> MskGate:
    return gated[1]


MSK = {"slackwater.auth": "msk-iam", "security.protocol": "SASL_PLAINTEXT"}


def aws(key: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}


def set_password(broker: GuardedKafka, password: str) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("app", credential, password.encode())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.alter_user_scram_credentials([change]).values():
        answer.result(30)


def scram(broker: GuardedKafka, file: Path) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.guarded,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "app",
        "sasl.password.file": str(file),
    }


@dataclass
class Traffic:
    """Requests of every kind through one `Kafka`: topics, writes, reads, and a transactional producer."""

    kafka: Kafka
    topic: str = field(default_factory=lambda: f"traffic-{uuid4().hex[:8]}")
    written: int = 0
    published: int = 0

    def __post_init__(self) -> None:
        self.kafka.create_topics({self.topic: 1, f"{self.topic}-out": 1})
        settings = TransactionSettings(f"t-{self.topic}", f"g-{self.topic}", self.topic, f"{self.topic}-out", 30)
        self.producer = self.kafka.transactional_producer(settings)
        eventually(self._opens, "the broker's coordinators are loaded", 60)

    def _opens(self) -> bool:
        try:
            return self.producer.open() is None
        except TransactionFailed:
            return False

    def pass_once(self) -> None:
        assert send_messages(self.kafka, self.topic, [(0, b"%d" % self.written)], b"h", patience_s=180)
        self.written += 1
        end = self.kafka.offset_bounds(self.topic)[1][0]
        chunks = self.kafka.read(self.topic, 0, end - 1, end, patience_s=180)
        assert [message.value() for chunk in chunks for message in chunk] == [b"%d" % (self.written - 1)]
        self.producer.begin()
        self.producer.write([b"k"], [b"%d" % self.published])
        self.published += 1
        self.producer.commit(self.published, "place")

    def pass_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.pass_once()

    def check(self) -> None:
        out = f"{self.topic}-out"
        end = self.kafka.offset_bounds(out)[1][0]
        read = [m.value() for run in self.kafka.read(out, 0, 0, end, patience_s=180) for m in run]
        assert read == [b"%d" % number for number in range(self.published)]
        self.producer.close()


def explanation(attempt: Callable[[], object]) -> str:
    """Return the error of a call with its hint; empty if it succeeds."""
    try:
        attempt()
    except SlackwaterError as error:
        return f"{type(error).__name__}: {error.message} | {error.hint}"
    return ""


def test_a_password_rotated_in_its_file_is_used_by_all_new_connections(broker: GuardedKafka, tmp_path: Path) -> None:
    file = tmp_path / "password"
    set_password(broker, PASSWORD)
    file.write_text(f"{PASSWORD}\n")
    traffic = Traffic(open_kafka(scram(broker, file)))
    for rotation in range(2):
        traffic.pass_for(2 * _SESSION_S)
        set_password(broker, f"{PASSWORD}-{rotation}")
        file.write_text(f"{PASSWORD}-{rotation}\n")
        # By then, the broker has ended all sessions of the old password.
        traffic.pass_for(2 * _SESSION_S)
    traffic.check()


def test_a_refused_password_is_named_and_the_same_client_goes_on_when_its_file_has_the_right_one(
    broker: GuardedKafka, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    set_password(broker, PASSWORD)
    file.write_text("hush7hush7wrong")
    kafka = open_kafka(scram(broker, file))
    told = ""

    def is_told() -> bool:
        nonlocal told
        told = explanation(lambda: kafka.partition_counts(timeout_s=2))
        return "it refuses the login" in told

    eventually(is_told, "the refused login is told", 30)
    assert f"Unavailable: Kafka at {broker.guarded} does not answer" in told
    assert "SASL authentication error" in told
    assert "hush7hush7" not in told
    file.write_text(PASSWORD)
    assert kafka.partition_counts() is not None


def test_a_reader_that_waits_logs_in_with_the_new_password(broker: GuardedKafka, tmp_path: Path) -> None:
    file, topic = tmp_path / "password", f"waiting-{uuid4().hex[:8]}"
    set_password(broker, PASSWORD)
    file.write_text(PASSWORD)
    kafka, other = open_kafka(scram(broker, file)), open_kafka(broker.bootstrap)
    other.create_topics({topic: 1})
    send_messages(other, topic, [(0, b"0")], b"h", patience_s=180)
    chunks = kafka.read(topic, 0, 0, 2, patience_s=60)
    assert [message.value() for message in next(chunks)] == [b"0"]
    set_password(broker, f"{PASSWORD}-new")
    file.write_text(f"{PASSWORD}-new")
    broker.kill()  # and with it the connection
    broker.start()
    send_messages(other, topic, [(0, b"1")], b"h", patience_s=180)
    assert [message.value() for chunk in chunks for message in chunk] == [b"1"]


def oidc_properties(broker: GuardedKafka, oidc: OidcServer, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.guarded,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oidc.url,
        "sasl.oauthbearer.client.id": "app",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_tokens_of_an_oidc_server_are_renewed_and_so_is_its_secret(
    broker: GuardedKafka, oidc: OidcServer, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(PASSWORD)
    traffic = Traffic(open_kafka(oidc_properties(broker, oidc, sasl_oauthbearer_client_secret_file=str(file))))
    issued = oidc.issued
    traffic.pass_for(3 * oidc.lifetime_s)
    assert oidc.issued >= issued + 2
    oidc.secret = f"{PASSWORD}-new"
    file.write_text(oidc.secret)
    traffic.pass_for(3 * oidc.lifetime_s)
    traffic.check()


def test_a_secret_that_the_oidc_server_refuses_is_named(broker: GuardedKafka, oidc: OidcServer) -> None:
    kafka = open_kafka(oidc_properties(broker, oidc, sasl_oauthbearer_client_secret="hush7hush7wrong"))
    told = ""

    def is_told() -> bool:
        nonlocal told
        told = explanation(lambda: kafka.partition_counts(timeout_s=2))
        return "it refuses the login" in told

    eventually(is_told, "the refused secret is told", 40)
    assert oidc.refused
    assert "hush7hush7" not in told


def msk(gate: MskGate) -> dict[str, str]:
    return {"bootstrap.servers": f"{HOST}:{gate.port}", **MSK}


def test_tokens_of_msk_are_signed_with_aws_credentials_and_renewed_before_they_end(
    gate: MskGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msk_iam, "LIFETIME_S", 15)
    with environment(**aws(KEYS[0])):
        traffic = Traffic(open_kafka(msk(gate)))
        traffic.pass_for(35)
        traffic.check()
    assert gate.tokens(KEYS[0], admitted=False) == []
    assert len(set(gate.tokens(KEYS[0]))) >= 3


def test_credentials_that_msk_refuses_are_named(gate: MskGate) -> None:
    # Other properties, so that this process has no client yet.
    kafka = open_kafka({**msk(gate), "socket.timeout.ms": "50000"})
    told = ""

    def is_told() -> bool:
        nonlocal told
        told = explanation(lambda: kafka.partition_counts(timeout_s=2))
        return "it refuses the login" in told

    with environment(**{**aws(KEYS[1]), "AWS_SECRET_ACCESS_KEY": "hush7hush7wrong"}):
        eventually(is_told, "the refused credentials are told", 30)
    assert "Access denied" in told
    assert "hush7hush7" not in told
    assert gate.tokens(KEYS[1], admitted=False)
    assert not gate.tokens(KEYS[1])


@dataclass
class LoggedIn(Ledger):
    """An app that logs in. The ledger itself writes and reads through the broker's open listener."""

    settings: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.settings}


def variables(properties: Mapping[str, str]) -> dict[str, str]:
    names = {name: name.upper().replace(".", "_") for name in properties}
    return {f"SLACKWATER_KAFKA_PROPERTIES_{names[name]}": value for name, value in properties.items()}


@pytest.mark.spark
def test_an_app_goes_on_while_its_password_is_rotated(broker: GuardedKafka, tmp_path: Path) -> None:
    file = tmp_path / "password"
    set_password(broker, PASSWORD)
    file.write_text(PASSWORD)
    settings = {**variables(scram(broker, file)), "SLACKWATER_KAFKA": broker.guarded}
    ledger = LoggedIn(broker.bootstrap, tmp_path, settings=settings)
    ledger.send(600)
    with ledger.fed(), ledger.running() as app:
        app.await_commit("branches")
        for rotation in range(2):
            set_password(broker, f"{PASSWORD}-{rotation}")
            file.write_text(f"{PASSWORD}-{rotation}")
            # Past the end of all sessions of the old password.
            until = time.monotonic() + 2 * _SESSION_S
            while time.monotonic() < until:
                app.await_commit("branches")
            assert ledger.slackwater("status", ledger.app).returncode == 0
    ledger.slackwater("run", str(ledger.program), "--app", ledger.app, "--master", "local[2]", "--until-caught-up")
    ledger.check_tables()


@pytest.mark.spark
def test_an_app_runs_on_msk_and_its_secrets_are_nowhere(
    gated: tuple[GuardedKafka, MskGate], gate: MskGate, tmp_path: Path
) -> None:
    settings = {
        **aws(KEYS[2]),
        "SLACKWATER_KAFKA": f"{HOST}:{gate.port}",
        "SLACKWATER_KAFKA_AUTH": "msk-iam",
        "SLACKWATER_KAFKA_PROPERTIES_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    }
    ledger = LoggedIn(gated[0].bootstrap, tmp_path, settings=settings)
    ledger.send(600)
    words = ("--app", ledger.app, "--master", "local[2]", "--until-caught-up")
    done = ledger.slackwater("run", str(ledger.program), *words)
    ledger.check_tables()
    tokens = gate.tokens(KEYS[2])
    assert len(tokens) >= 2
    assert gate.tokens(KEYS[2], admitted=False) == []
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for secret in (SECRET, tokens[0][-40:]):
        assert not any(secret.encode() in data for data in (*written, done.stdout.encode(), done.stderr.encode()))
