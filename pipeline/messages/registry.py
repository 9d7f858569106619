"""A client of a schema registry: Confluent's REST interface, as far as reading takes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3

from ...errors import NotFound, Refused, Usage
from ..kafka.patience import Patience
from .schema import Schema

USER_INFO = "SLACKWATER_REGISTRY_USER_INFO"
"""The variable with `user:password`."""

_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
_MAX_DEPTH = 32
_UNKNOWN = 404
_UNKNOWN_CODES = (40401, 40402, 40403)
"""What a registry says is not there: a subject, a version, a schema."""
_LATER = (408, 429)
_FORBIDDEN = (401, 403)
_INCOMPATIBLE = (409, 422)


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a registry is, and who asks. Crosses to workers by pickle, inside Spark."""

    url: str
    user_info: str = field(default="", repr=False)
    """`user:password`, or empty."""
    patience_s: float = 60.0

    @staticmethod
    def of(url: str, patience_s: float) -> Registry:
        """The registry at a URL, with the credentials of the environment.

        Raises:
            Usage: It is no URL of http or https, or has a password in it.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Usage(
                f"{parts.hostname or 'that'!r} is no registry's URL", hint='as registry="http://localhost:8081"'
            )
        if "@" in parts.netloc:
            raise Usage(
                f"the URL of the registry at {parts.hostname} has credentials in it, and would be shown with them",
                hint=f"set {USER_INFO}=user:password instead",
            )
        return Registry(url.rstrip("/"), os.environ.get(USER_INFO, ""), patience_s)

    def latest(self, subject: str, version: int | None) -> Schema:
        """A subject's schema: of a version, or the newest one. It is asked once a start, not a second time.

        Raises:
            NotFound: The registry has no such subject or version.
            Refused: It does not let us ask, or answers what is no schema.
            Unavailable: It has not answered for as long as there is patience.
        """
        return _latest(self, subject, version)

    def by_id(self, number: int) -> Schema:
        """The schema that a message names; an id never gets another one. Raises as `latest`."""
        return _by_id(self, number)

    def register(self, subject: str, text: str) -> int:
        """Have an Avro schema under a subject; one that is there keeps its id.

        Raises:
            Refused: It does not fit those that are there, or the registry does not let us.
            Unavailable: It has not answered for as long as there is patience.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self.ask(path, "subject", subject, {"schema": text, "schemaType": "AVRO"})
        if not isinstance(answer, Mapping) or not isinstance(answer.get("id"), int):
            raise Refused(f"the registry at {self.url} answers with no id to the schema of {subject!r}")
        return int(answer["id"])

    def ask(self, path: str, what: str, name: str, sent: Mapping[str, str] | None = None) -> Any:
        """The answer to a question, or to what is sent, waiting for it with patience. Raises as `latest`."""
        body = None if sent is None else json.dumps(sent).encode()
        headers = self._headers() | ({} if body is None else {"content-type": "application/vnd.schemaregistry.v1+json"})
        patience = Patience(f"the schema registry at {self.url}", self.patience_s, "registry= in the program")
        while True:
            try:
                method = "GET" if body is None else "POST"
                answer = _pool(os.getpid()).request(method, f"{self.url}{path}", body=body, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                patience.waited(type(error).__name__)
            else:
                if _is_its_own(answer):
                    return self._checked(answer, what, name)
                patience.waited(f"it says {answer.status}")
            time.sleep(min(_PAUSE_S, self.patience_s))

    def _headers(self) -> dict[str, str]:
        accept = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        return accept | (urllib3.make_headers(basic_auth=self.user_info) if self.user_info else {})

    def _checked(self, answer: urllib3.BaseHTTPResponse, what: str, name: str) -> Any:
        if answer.status == _UNKNOWN:
            raise NotFound(what, name, found=f"the schema registry at {self.url} does not know it")
        if answer.status in _FORBIDDEN:
            raise Refused(
                f"the schema registry at {self.url} does not let this user read or write (it says {answer.status})",
                hint=f"set {USER_INFO}=user:password, with the right to read subjects, and for a sink to write its own",
            )
        if answer.status in _INCOMPATIBLE:
            raise Refused(
                f"the schema registry at {self.url} does not take the columns of {what} {name!r}: {_why(answer.data)}",
                hint="keep the columns compatible, or give the sink another subject=",
            )
        try:
            if answer.status == 200:
                return json.loads(answer.data)
        except ValueError:
            pass
        raise Refused(
            f"what answers at {self.url} is no schema registry: it says {answer.status} to {what} {name!r}",
            hint="the URL is that under which /subjects is, such as http://localhost:8081",
        )


def _why(answer: bytes) -> str:
    """What the registry says, in a line."""
    try:
        return " ".join(str(json.loads(answer)["message"]).split())[:300]
    except (ValueError, KeyError, TypeError):
        return "it does not say why"


def _is_its_own(answer: urllib3.BaseHTTPResponse) -> bool:
    """Whether the registry answered: while it is away, a proxy before it may say 404, too."""
    if answer.status == _UNKNOWN:
        try:
            said = json.loads(answer.data)
        except ValueError:
            return False
        return isinstance(said, Mapping) and said.get("error_code") in _UNKNOWN_CODES
    return answer.status < 500 and answer.status not in _LATER


def forget_latest() -> None:
    """Ask for the newest schemas anew: an app starts."""
    _latest.cache_clear()


@lru_cache(maxsize=256)
def _latest(registry: Registry, subject: str, version: int | None) -> Schema:
    path = f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}"
    name = f"{subject}, version {version}" if version else subject
    return _schema(registry, registry.ask(path, "subject", name))


@lru_cache(maxsize=4096)
def _by_id(registry: Registry, number: int) -> Schema:
    return _schema(registry, registry.ask(f"/schemas/ids/{number}", "schema id", str(number)))


def _schema(registry: Registry, answer: Any, depth: int = 0) -> Schema:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str) or depth > _MAX_DEPTH:
        raise Refused(f"the schema registry at {registry.url} answers with what is no schema")
    references = []
    for one in answer.get("references") or ():
        path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
        referenced = registry.ask(path, "subject", one["subject"])
        references.append((one["name"], _schema(registry, referenced, depth + 1)))
    return Schema(answer.get("schemaType") or "AVRO", answer["schema"], tuple(references))


@lru_cache(maxsize=1)
def _pool(_pid: int) -> urllib3.PoolManager:
    """Connections of this process; a forked worker has its own."""
    return urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False)
