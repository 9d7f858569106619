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
_NOT_THERE = 404
_NOT_THERE_CODES = (40401, 40402, 40403)
"""What a registry says is not there: a subject, a version, a schema. A proxy before it may say 404 while it is away."""
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
        """The registry at a URL, with the credentials of the environment. Raises `Usage` where it is no such URL."""
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

    @lru_cache(maxsize=256)  # noqa: B019  a registry is a value, of which a process has a few
    def latest(self, subject: str, version: int | None) -> Schema:
        """A subject's schema: of a version, or the newest one. It is asked once a start, not a second time.

        Raises `NotFound`, `Refused` where we may not ask or what answers is no schema, and `Unavailable` when patience
        ends.
        """
        name = f"{subject}, version {version}" if version else subject
        return self._schema(self._ask(_path(subject, version or "latest"), "subject", name))

    @lru_cache(maxsize=4096)  # noqa: B019
    def by_id(self, number: int) -> Schema:
        """The schema that a message names; an id never gets another one. Raises as `latest`."""
        return self._schema(self._ask(f"/schemas/ids/{number}", "schema id", str(number)))

    def register(self, subject: str, text: str) -> int:
        """Have an Avro schema under a subject; one that is there keeps its id.

        Raises `Refused` where it does not fit those that are there or we may not, and `Unavailable` as `latest`.
        """
        answer = self._ask(_path(subject), "subject", subject, {"schema": text, "schemaType": "AVRO"})
        if not isinstance(answer, Mapping) or not isinstance(answer.get("id"), int):
            raise Refused(f"the registry at {self.url} answers with no id to the schema of {subject!r}")
        return int(answer["id"])

    def _ask(self, path: str, what: str, name: str, sent: Mapping[str, str] | None = None) -> Any:
        """The answer to a question, or to what is sent, waiting for it with patience. Raises as `latest`."""
        headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.user_info:
            headers |= urllib3.make_headers(basic_auth=self.user_info)
        if sent is not None:
            headers["content-type"] = "application/vnd.schemaregistry.v1+json"
        body, method = (None, "GET") if sent is None else (json.dumps(sent).encode(), "POST")
        patience = Patience(f"the schema registry at {self.url}", self.patience_s, "registry= in the program")
        while True:
            try:
                answer = _pool(os.getpid()).request(method, f"{self.url}{path}", body=body, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                patience.waited(type(error).__name__)
            else:
                status, content = answer.status, _content(answer.data)
                known = isinstance(content, Mapping) and content.get("error_code") in _NOT_THERE_CODES
                if known if status == _NOT_THERE else status < 500 and status not in _LATER:
                    return self._checked(status, content, what, name)
                patience.waited(f"it says {status}")
            time.sleep(min(_PAUSE_S, self.patience_s))

    def _checked(self, status: int, content: Any, what: str, name: str) -> Any:
        if status == _NOT_THERE:
            raise NotFound(what, name, found=f"the schema registry at {self.url} does not know it")
        if status in _FORBIDDEN:
            raise Refused(
                f"the schema registry at {self.url} does not let this user read or write (it says {status})",
                hint=f"set {USER_INFO}=user:password, with the right to read subjects, and for a sink to write its own",
            )
        if status in _INCOMPATIBLE:
            says = isinstance(content, Mapping) and "message" in content
            why = " ".join(str(content["message"]).split())[:300] if says else "it does not say why"
            raise Refused(
                f"the schema registry at {self.url} does not take the columns of {what} {name!r}: {why}",
                hint="keep the columns compatible, or give the sink another subject=",
            )
        if status != 200 or content is None:
            raise Refused(
                f"what answers at {self.url} is no schema registry: it says {status} to {what} {name!r}",
                hint="the URL is that under which /subjects is, such as http://localhost:8081",
            )
        return content

    def _schema(self, answer: Any, depth: int = 0) -> Schema:
        if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str) or depth > _MAX_DEPTH:
            raise Refused(f"the schema registry at {self.url} answers with what is no schema")
        references = []
        for one in answer.get("references") or ():
            referenced = self._ask(_path(one["subject"], one["version"]), "subject", one["subject"])
            references.append((one["name"], self._schema(referenced, depth + 1)))
        return Schema(answer.get("schemaType") or "AVRO", answer["schema"], tuple(references))


def _path(subject: str, *version: str | int) -> str:
    return "/".join(("/subjects", quote(subject, safe=""), "versions", *map(str, version)))


def _content(data: bytes) -> Any:
    """The JSON of an answer; None where it is none."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def forget_latest() -> None:
    """Ask for the newest schemas anew: an app starts."""
    Registry.latest.cache_clear()


@lru_cache(maxsize=1)
def _pool(_pid: int) -> urllib3.PoolManager:
    """Connections of this process; a forked worker has its own."""
    return urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False)
