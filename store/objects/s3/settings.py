"""What may be set about requests to S3, and how one process gets there; values that travel to other processes.

Encryption, timeouts, the budget of repetitions and parts stand in the table `[s3]` of slackwater.toml and, before that,
in variables `SLACKWATER_S3_…`. A store is opened with them as one value, which travels with it to every process that
talks to S3.

Tasks of Spark run on machines that know neither endpoint nor credentials. The driver puts an `S3Access` into what Spark
pickles for them. It stands nowhere else: not in an option, a setting, a variable or a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec

from ....errors import Usage
from ..retry import AT_ONCE, PER_S

_PREFIX = "SLACKWATER_S3_"
_MIB = 1 << 20
_SSE = ("AES256", "aws:kms")

_Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
_Several = Annotated[int, msgspec.Meta(ge=1, le=64)]
# S3's own limits: for all parts but the last, and for one request.
_Part = Annotated[int, msgspec.Meta(ge=5 * _MIB, le=5 << 30)]


class S3Settings(msgspec.Struct, frozen=True):
    """How this process talks to S3."""

    sse: str = ""
    """Encryption at rest to ask for with each object: "AES256", "aws:kms", or empty for the bucket's own."""
    sse_kms_key_id: str = ""
    """Id, alias or ARN of the key for "aws:kms"; empty for the account's own."""
    sse_bucket_key: bool = False
    """Whether KMS is asked once for many objects (an S3 Bucket Key) instead of for each."""
    connect_timeout_s: _Seconds = 5.0
    read_timeout_s: _Seconds = 30.0
    """Longest silence on a connection."""
    attempt_timeout_s: _Seconds = 120.0
    """Longest time for one answer to arrive."""
    retries_at_once: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = AT_ONCE
    retries_per_s: Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] = PER_S
    multipart_bytes: _Part = 16 * _MIB
    """Objects larger than this are written in parts."""
    part_bytes: _Part = 8 * _MIB
    """Size of such a part, and of one that is read."""
    parallel_parts: _Several = 4
    """Parts of one object that are moved at a time; 1 for one after the other."""


_FIELDS: Mapping[str, Any] = {field.name: field.type for field in msgspec.structs.fields(S3Settings)}


def settings_in(environ: Mapping[str, str], table: Mapping[str, Any] | None = None, where: str = "") -> S3Settings:
    """The settings that variables say, and before defaults those of a table; an empty variable says nothing.

    `table` is `[s3]` of slackwater.toml, `where` what goes before its settings' names in errors, such as
    `slackwater.toml: s3.`. Raises `Usage` where one cannot be understood.
    """
    variables = {name.removeprefix(_PREFIX): value for name, value in environ.items() if name.startswith(_PREFIX)}
    given = [(where, name, value) for name, value in (table or {}).items()]
    given += [(_PREFIX, name, value) for name, value in variables.items() if value]
    said = {name.lower(): (prefix + name, _value(prefix, name, value)) for prefix, name, value in given}
    settings = S3Settings(**{name: value for name, (_, value) in said.items()})
    sse = said["sse"][0] if "sse" in said else "sse"
    if settings.sse and settings.sse not in _SSE:
        raise Usage(f"{sse} is {settings.sse!r}: expected {' or '.join(map(repr, _SSE))}")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if getattr(settings, name) and settings.sse != "aws:kms":
            found = repr(settings.sse) if settings.sse else "not set"
            raise Usage(
                f"{said[name][0]} is for encryption by KMS, and {sse} is {found}",
                hint="set sse to 'aws:kms', or leave the other out",
            )
    return settings


def aws_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables among these by which a process finds S3 and signs its requests. Some are secrets."""
    return {name: value for name, value in environ.items() if name.startswith("AWS_")}


def _value(prefix: str, name: str, value: Any) -> Any:
    field = name.lower()
    if field not in _FIELDS:
        nearest = "".join(get_close_matches(field, _FIELDS, n=1))
        shown = nearest.upper() if name.isupper() else nearest
        raise Usage(
            f"{prefix}{name} is not a setting{f'; the nearest is {prefix}{shown}' if nearest else ''}",
            hint=f"the settings of S3 are {', '.join(_FIELDS)}",
        )
    try:
        return msgspec.convert(value, _FIELDS[field], strict=False)
    except msgspec.ValidationError as error:
        raise Usage(f"{prefix}{name} is {value!r}: {str(error).replace('Expected', 'expected')}") from None


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where S3 is, and how to talk to it. No secret is in it."""

    endpoint_url: str
    """Empty for what AWS's environment and files say, and for AWS's own endpoint of the region."""
    region: str
    settings: S3Settings
    ca_bundle: str = ""
    """File of the certificates to trust, which has to be on each machine; empty for those of the machine."""
    handed_over: bool = False
    """Whether another process said so: then AWS's environment and files on this machine do not count."""


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """What requests are signed with. Never printed."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Empty for keys that are not temporary."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """A place, and the credentials that hold there now."""

    place: S3Place
    credentials: S3Credentials


@runtime_checkable
class Remote(Protocol):
    """A store that takes more to get to than its root."""

    def access(self) -> S3Access | None:
        """How this process gets there, at this moment; None when it has no credentials."""
