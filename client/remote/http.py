"""One question and its answer; an error there is the same error here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa
import urllib3

from ... import errors
from ...common.learned import learned
from ...errors import Forbidden, Refused, SlackwaterError, Unavailable, Usage
from ..when import in_words

T = TypeVar("T")
_ARROW = "application/vnd.apache.arrow.stream"
_AS = {"NotKnown": Forbidden, "Denied": Forbidden, "TooOften": Unavailable, "NotYet": Refused}
"""Errors that only a server has."""


class Http:
    """Asks one server. Threads may share it.

    Args:
        url: its address.
        token: what says who asks; empty for nobody.
        timeout_s: patience for each answer.
    """

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        retries = urllib3.Retry(3, backoff_factor=0.2, status_forcelist=(503,), respect_retry_after_header=True)
        timeout = urllib3.Timeout(connect=5, read=timeout_s)
        self._pool = urllib3.PoolManager(maxsize=16, headers=headers, retries=retries, timeout=timeout)

    def json(self, path: Sequence[str], kind: type[T] | Any = Any, **asked: Any) -> Any:
        """A document, as values of a type. Raises the server's errors, and `Unavailable`."""
        data = self._get(path, asked, "application/json")
        try:
            return msgspec.json.decode(data, type=learned(kind))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._not_one(str(error)) from None

    def arrow(self, path: Sequence[str], **asked: Any) -> tuple[pa.Table, dict[str, Any]]:
        """Rows, and what is said beside them. Raises the server's errors, and `Unavailable`."""
        data = self._get(path, asked, _ARROW)
        try:
            table = pa.ipc.open_stream(data).read_all()
            about = json.loads((table.schema.metadata or {})[b"slackwater"])
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise self._not_one(str(error)) from None
        return table.replace_schema_metadata(None), about

    def close(self) -> None:
        """Close its connections."""
        self._pool.clear()

    def _get(self, path: Sequence[str], asked: Mapping[str, Any], accept: str) -> bytes:
        fields = [
            (name, str(one).lower() if isinstance(one, bool) else str(one))
            for name, value in _plain(asked).items()
            if value is not None
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        if "sql" in asked:  # may be longer than an address
            answer = self._request("POST", path, accept, json=_plain(asked))
        else:
            answer = self._request("GET", path, accept, fields=fields)
        data: bytes = answer.data
        return data

    def post(self, path: Sequence[str], **asked: Any) -> Any:
        """The document that answers what is to be done. Raises the server's errors, and `Unavailable`."""
        return msgspec.json.decode(
            self._request("POST", path, "application/json", json=_plain(asked), retries=False).data
        )

    def events(self, path: Sequence[str], **asked: Any) -> Iterator[tuple[str, Any]]:
        """Server-sent events of what is asked, each with its name; one called `error` is raised. Raises as `post`."""
        answer = self._request("POST", path, "*/*", json=_plain(asked), retries=False, preload_content=False)
        with answer:
            name = ""
            for line in answer:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data" and name == "error":
                    raise self._error(0, value.encode())
                elif field == "data":
                    yield name, msgspec.json.decode(value)

    def _request(self, method: str, path: Sequence[str], accept: str, **how: Any) -> urllib3.BaseHTTPResponse:
        url = "/".join((self.url, *(quote(each, safe="") for each in path)))
        try:
            answer = self._pool.request(method, url, headers={**self._pool.headers, "accept": accept}, **how)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from None
        if answer.status != 200:
            raise self._error(answer.status, answer.data)
        return answer

    def _error(self, status: int, data: bytes) -> SlackwaterError:
        try:
            told = msgspec.json.decode(data, type=dict[str, Any])
            name, message, hint = told["error"], told["message"], told["hint"]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
            return self._not_one(f"it answered {status}")
        kind = _AS.get(name) or getattr(errors, name, SlackwaterError)
        if not (isinstance(kind, type) and issubclass(kind, SlackwaterError)):
            kind = SlackwaterError
        sentence, _, quoted = message.partition("\n")
        more = {"what": "", "name": "", "known": (), "object_key": "", "offsets": told.get("offsets")}
        return errors.again(kind, message=message, sentence=sentence, quoted=quoted, hint=hint, **more)

    def _not_one(self, why: str) -> Usage:
        return Usage(f"{self.url} is no server of slackwater's: {why}", hint="`slackwater serve` starts one")


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked with moments in words."""
    return {name: in_words(value) if isinstance(value, date | timedelta) else value for name, value in asked.items()}
