"""HTTP requests to `slackwater serve`; an error in an answer is raised as the class that the answer names."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa
import urllib3

from ... import errors
from ...errors import Forbidden, Refused, SlackwaterError, Unavailable, Usage
from ...store.versions.codec import register_type
from ..when import moment_text

T = TypeVar("T")
_ARROW = "application/vnd.apache.arrow.stream"
_LOCAL_ERRORS = {"NotKnown": Forbidden, "Denied": Forbidden, "TooOften": Unavailable, "NotYet": Refused}


class Http:
    """HTTP connection to one server; thread-safe.

    Args:
        url: the server's address.
        token: the bearer token; empty for none.
        timeout_s: read timeout of each answer.
    """

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        retries = urllib3.Retry(3, backoff_factor=0.2, status_forcelist=(503,), respect_retry_after_header=True)
        timeout = urllib3.Timeout(connect=5, read=timeout_s)
        self._pool = urllib3.PoolManager(maxsize=16, headers=headers, retries=retries, timeout=timeout)

    def json(self, path: Sequence[str], kind: type[T] | Any = Any, **params: Any) -> Any:
        """Get a document, decoded as `kind`. Raises the errors that the server names, and `Unavailable`."""
        data = self._get(path, params, "application/json")
        try:
            return msgspec.json.decode(data, type=register_type(kind))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._not_a_server(str(error)) from None

    def arrow(self, path: Sequence[str], **params: Any) -> tuple[pa.Table, dict[str, Any]]:
        """Get rows and their metadata. Raises the errors that the server names, and `Unavailable`."""
        data = self._get(path, params, _ARROW)
        try:
            table = pa.ipc.open_stream(data).read_all()
            about = json.loads((table.schema.metadata or {})[b"slackwater"])
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise self._not_a_server(str(error)) from None
        return table.replace_schema_metadata(None), about

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _get(self, path: Sequence[str], params: Mapping[str, Any], accept: str) -> bytes:
        fields = [
            (name, str(item).lower() if isinstance(item, bool) else str(item))
            for name, value in _moments_as_text(params).items()
            if value is not None
            for item in (value if isinstance(value, list | tuple) else [value])
        ]
        if "sql" in params:  # may be too long for a URL
            answer = self._request("POST", path, accept, json=_moments_as_text(params))
        else:
            answer = self._request("GET", path, accept, fields=fields)
        data: bytes = answer.data
        return data

    def post(self, path: Sequence[str], **params: Any) -> Any:
        """Post a request and return the decoded document. Raises the server's errors, and `Unavailable`."""
        return msgspec.json.decode(
            self._request("POST", path, "application/json", json=_moments_as_text(params), retries=False).data
        )

    def events(self, path: Sequence[str], **params: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and data of each server-sent event.

        Raises the error that an event named `error` describes, and the errors of `post`.
        """
        answer = self._request("POST", path, "*/*", json=_moments_as_text(params), retries=False, preload_content=False)
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
        url = "/".join((self.url, *(quote(part, safe="") for part in path)))
        try:
            answer = self._pool.request(method, url, headers={**self._pool.headers, "accept": accept}, **how)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{self.url} does not answer: {error}") from None
        if answer.status != 200:
            raise self._error(answer.status, answer.data)
        return answer

    def _error(self, status: int, data: bytes) -> SlackwaterError:
        try:
            document = msgspec.json.decode(data, type=dict[str, Any])
            name, message, hint = document["error"], document["message"], document["hint"]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
            return self._not_a_server(f"it answered {status}")
        kind = _LOCAL_ERRORS.get(name) or getattr(errors, name, SlackwaterError)
        if not (isinstance(kind, type) and issubclass(kind, SlackwaterError)):
            kind = SlackwaterError
        sentence, _, quoted = message.partition("\n")
        more = {"what": "", "name": "", "known": (), "object_key": "", "offsets": document.get("offsets")}
        return errors.recreate_error(kind, message=message, sentence=sentence, quoted=quoted, hint=hint, **more)

    def _not_a_server(self, why: str) -> Usage:
        return Usage(f"{self.url} is not a slackwater server: {why}", hint="`slackwater serve` starts one")


def _moments_as_text(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: moment_text(value) if isinstance(value, date | timedelta) else value for name, value in params.items()
    }
