"""Access: tokens, certificates, local requests, and rate limits."""

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from slackwater.client import Client
from slackwater.errors import NotFound, Refused, Usage
from slackwater.operations.maintenance import tokens as kept
from slackwater.serve.audit import AUDIT
from slackwater.serve.server import ListenOptions, ServeInstance
from slackwater.serve.service import ServeOptions

from tests.support.histories import FlightsApp
from tests.support.running import eventually

from .conftest import Ask, made

CARRIERS = "/apps/flights/at/now/tables/carriers"
GUARDED = ListenOptions(needs_tokens=True)


def test_a_token_is_stored_as_a_hash_and_shown_once(client: Client, app: FlightsApp) -> None:
    token = made(client, "reports")
    (found,) = client.tokens()
    assert found.digest == kept.digest(token)
    stored = app.store.get("_serve/tokens/reports.json")
    assert token.encode() not in stored
    with pytest.raises(Refused, match="already"):
        made(client, "reports")
    with pytest.raises(NotFound):
        made(client, "others", "flihgts")
    with pytest.raises(Usage):
        made(client, "No Name")


def test_without_a_token_every_request_is_refused(client: Client, own: Callable[..., Ask]) -> None:
    ask, token = own(GUARDED), made(client, "reports")
    assert ask("/apps").status == 401
    assert ask("/apps").headers["www-authenticate"] == "Bearer"
    assert ask.token("slackwater_guessed", "/apps").status == 401
    assert ask("/apps", headers={"authorization": f"Basic {token}"}).status == 401
    assert ask.token(token, "/apps").json["apps"] == ["flights"]
    assert ask("/healthz").status == 200


def test_a_token_is_limited_to_apps_tables_and_verbs(client: Client, own: Callable[..., Ask]) -> None:
    ask = own(GUARDED)
    of_carriers = made(client, "carriers", tables=("carriers",), verbs=("read", "sql"))
    reads = made(client, "reads")
    assert ask.token(of_carriers, CARRIERS, key="C1").status == 200
    assert ask.token(of_carriers, CARRIERS.replace("carriers", "aircraft"), key="N001").status == 403
    assert ask.token(of_carriers, "/apps/flights/diff", before="~1").status == 403
    assert ask.token(of_carriers, "/apps/flights/log").status == 403
    assert ask.token(of_carriers, "/apps/flights/tables/aircraft/history", key="N001").status == 403
    assert [each["table"] for each in ask.token(of_carriers, "/apps/flights").json["tables"]] == ["carriers"]
    query = "/apps/flights/at/now/query"
    assert ask.token(of_carriers, query, sql="FROM carriers").status == 200
    for hidden in ("FROM aircraft", "FROM aircraft AT '~1'", "FROM versions('aircraft')", "FROM input('flights')"):
        assert ask.token(of_carriers, query, sql=hidden).status == 404, hidden
    assert ask.token(of_carriers, query, sql="FROM inflight('by-carrier')").status == 404
    assert ask.token(reads, query, sql="FROM carriers").status == 403
    assert ask.token(reads, "/apps/other").status == 403


def test_data_that_a_token_may_not_see_is_listed_as_hidden_and_not_shown_as_empty(
    client: Client, own: Callable[..., Ask]
) -> None:
    ask, token = own(GUARDED), made(client, "carriers", tables=("carriers",), verbs=("read",))
    everything = made(client, "all", "*")
    hidden = ask.token(token, "/apps/flights").json["hidden"]
    assert hidden[:2] == ["apps other than flights", "tables other than carriers"]
    assert ask.token(token, "/me").json["hidden"] == ask.token(token, "/apps").json["hidden"] == hidden
    for what in ("at/now/stages", "timeline", "log", "rejected", "operations", "cost"):
        found = ask.token(token, f"/apps/flights/{what}")
        assert (found.status, found.json["error"]) == (403, "Denied")
        assert "may read only carriers" in found.json["message"]
        assert "--table" in found.json["hint"]
    assert ask.token(everything, "/me").json["hidden"] == []
    assert "hidden" not in ask.token(everything, "/apps/flights").json


def test_a_removed_or_expired_token_is_refused(
    client: Client, own: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.serve.tokens._TOKEN_CACHE_S", 0.0)
    ask, token = own(GUARDED), made(client, "reports", days=1)
    assert ask.token(token, "/apps").status == 200
    monkeypatch.setattr("slackwater.serve.tokens.now_ms", lambda: 1 << 45)
    assert ask.token(token, "/apps").status == 401
    monkeypatch.undo()
    client.remove_token("reports")
    assert client.tokens() == ()
    assert "done already: token reports was removed" in repr(client.remove_token("reports"))
    with pytest.raises(NotFound):
        client.remove_token("report")


def test_an_open_stream_ends_with_a_reason_when_its_token_is_removed(
    client: Client, own: Callable[..., Ask], caplog: pytest.LogCaptureFixture
) -> None:
    ask, token = own(GUARDED), made(client, "reports")
    headers = {"authorization": f"Bearer {token}"}
    at = urllib3.PoolManager().request(
        "GET", f"{ask.url}/apps/flights/commits", headers=headers, preload_content=False, timeout=180
    )
    with caplog.at_level(logging.INFO, AUDIT.name):
        assert at.readline() == b"event: commit\n"
        client.remove_token("reports")
        rest = at.read().decode()  # ends within the connection's time-out
        assert "event: error" in rest
        assert "the token or certificate is unknown" in rest
        eventually(lambda: "commits ended" in caplog.text, "a line for the end of the stream")
    (line,) = [each.getMessage() for each in caplog.records if "commits ended" in each.getMessage()]
    assert msgspec.json.decode(line)["rows"] == 1


@pytest.mark.parametrize(
    ("path", "asked", "rows"),
    [
        (CARRIERS, {"key": ["C0", "C1"]}, 2),
        ("/apps/flights/at/now/query", {"sql": "FROM carriers"}, 3),
        ("/apps/flights/at/now/query", {"sql": "FROM carriers", "format": "arrow"}, 3),
        ("/apps", {}, 1),
        ("/apps/flights", {}, 2),
        ("/apps/flights/log", {"limit": "5"}, 5),
        ("/apps/flights/diff", {"before": "~9", "table": "carriers"}, 3),
        ("/apps/flights/tables/carriers/history", {"key": "C1", "limit": "2"}, 2),
        ("/apps/flights/at/now/tables/carriers/rows", {}, 3),
        ("/apps/flights/at/now/stages", {}, 3),
        ("/apps/flights/snapshots", {}, 0),
    ],
)
def test_an_audit_line_counts_the_returned_rows(
    ask: Ask, caplog: pytest.LogCaptureFixture, path: str, asked: dict[str, Any], rows: int
) -> None:
    with caplog.at_level(logging.INFO, AUDIT.name):
        found = ask(path, **asked)
        assert found.status == 200, found.body
        eventually(lambda: caplog.records, "a line")
    assert msgspec.json.decode(caplog.records[-1].getMessage())["rows"] == rows, found.body


def test_a_tokens_requests_are_rate_limited(client: Client, own: Callable[..., Ask]) -> None:
    ask, token = own(GUARDED), made(client, "slow", per_s=2)
    found = [ask.token(token, "/apps").status for _ in range(5)]
    assert found[:2] == [200, 200]
    assert 429 in found
    assert int(ask.token(token, "/apps").headers["retry-after"]) >= 1


def test_a_web_page_of_another_host_cannot_read_a_local_server(own: Callable[..., Ask]) -> None:
    ask = own()
    assert ask("/apps", headers={"host": "evil.example"}).status == 403
    assert ask("/apps", headers={"host": "evil.example:8350"}).status == 403
    assert ask("/apps", headers={"host": "localhost:1"}).status == 200
    found = ask("/apps", headers={"origin": "http://evil.example"})
    assert not [name for name in found.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_loopback_address_needs_no_token(host: str) -> None:
    assert ListenOptions(host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])  # noqa: S104  nothing listens there
def test_any_other_address_needs_tokens(host: str) -> None:
    assert not ListenOptions(host).is_loopback


def test_client_certificates_require_tls(client: Client) -> None:
    with pytest.raises(Usage, match="client-ca needs TLS"):
        ServeInstance(client, ListenOptions(client_ca=Path("ca.pem")), ServeOptions())


def test_a_client_certificate_identifies_its_common_name(
    client: Client, own: Callable[..., Ask], tmp_path: Path
) -> None:
    ca = Authority(tmp_path)
    server, grafana, stranger = ca.signed("localhost"), ca.signed("grafana"), ca.signed("stranger")
    made(client, "grafana", certificate=True)
    ask = own(ListenOptions(certificate=server, client_ca=ca.file, needs_tokens=True), ca_certs=str(ca.file))
    at = {"ca_certs": str(ca.file), "assert_hostname": False}
    assert Ask(ask.url, cert_file=str(grafana), **at)("/apps").json["apps"] == ["flights"]
    assert Ask(ask.url, cert_file=str(stranger), **at)("/apps").status == 401
    assert Ask(ask.url, **at)("/apps").status == 401
    (tmp_path / "other").mkdir()
    with pytest.raises(urllib3.exceptions.HTTPError):
        Ask(ask.url, cert_file=str(Authority(tmp_path / "other").signed("grafana")), **at)("/apps")


class Authority:
    """A certificate authority for tests."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._certificate(self._name, self._key, is_ca=True))

    def signed(self, name: str) -> Path:
        """Return a file with a private key, and a certificate for this common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{name}.pem"
        file.write_bytes(pem + self._certificate(subject, key, is_ca=False))
        return file

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> bytes:
        now = dt.datetime.now(dt.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)
