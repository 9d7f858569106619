"""A schema registry for tests: Apicurio, with its API for Confluent's clients."""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import urllib3
from slackwater.pipeline.dev.jars import Jars
from slackwater.pipeline.dev.jvm_server import HOST, EmbeddedServer, is_port_open

_TYPE = {"content-type": "application/vnd.schemaregistry.v1+json"}


class EmbeddedRegistry(EmbeddedServer):
    """A registry process, as a context manager. Clients use `registry.url`. Its schemas are lost when it ends."""

    name: ClassVar[str] = "the schema registry"
    jars: ClassVar[Jars] = Jars(
        "Apicurio Registry 2.6.13", "apicurio-registry-2.6.13", Path(__file__).with_name("registry-jars.txt"), 136
    )
    heap: ClassVar[str] = "384m"

    @property
    def url(self) -> str:
        """Return the URL for clients of Confluent's registry."""
        return f"http://{self.address}/apis/ccompat/v7"

    def is_answering(self) -> bool:
        """True if it can list its subjects."""
        return is_port_open(self.port) and urllib3.request("GET", f"{self.url}/subjects", retries=False).status == 200

    def register(self, subject: str, schema: object, kind: str = "AVRO", **more: Any) -> int:
        """Register a schema as the subject's next version, and return its id. An object is written as JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, **({"schemaType": kind} if kind != "AVRO" else {}), **more}
        where = f"{self.url}/subjects/{subject}/versions"
        answer = urllib3.request("POST", where, body=json.dumps(body), headers=_TYPE)
        assert answer.status == 200, answer.data
        return int(json.loads(answer.data)["id"])

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        home = unpacked(Path(classpath).parent)
        flags = (f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self.port}", "-Dquarkus.log.level=WARN")
        return (*flags, "-jar", str(next(home.glob("*-runner.jar"))))


def unpacked(jars: Path) -> Path:
    """Return the folder of the unpacked registry. It is complete even if several processes unpack it at once."""
    home = jars.with_suffix(".unpacked")
    if not home.exists():
        with (
            TemporaryDirectory(dir=home.parent) as folder,
            tarfile.open(next(jars.glob("*.tar.gz"))) as packed,
        ):
            packed.extractall(Path(folder) / "whole", filter="data")
            with suppress(OSError):  # another process was first
                (Path(folder) / "whole").rename(home)
    return home
