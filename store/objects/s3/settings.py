"""What may be set about requests to S3: encryption, timeouts, the budget of repetitions, parts.

They travel as variables of the environment, `SLACKWATER_S3_…`, because every process that talks to S3 needs them, and
most are started by Spark: the driver hands them on as it hands on AWS's own. The table `[s3]` of slackwater.toml
becomes such variables.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec

from ....errors import Usage
from ..retry_budget import AT_ONCE, PER_S

__all__ = ["S3Settings", "as_variables", "exported", "found_by", "settings_in"]

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


def settings_in(environ: Mapping[str, str]) -> S3Settings:
    """The settings that variables say; an empty variable says nothing.

    Raises:
        Usage: a variable cannot be understood.
    """
    given = {name.removeprefix(_PREFIX).lower(): value for name, value in exported(environ).items()}
    return _parsed(given, lambda name: _PREFIX + name.upper())


def as_variables(table: Mapping[str, Any], where: str) -> dict[str, str]:
    """The variables for a table of settings; `where` says where it stands, such as the file's path.

    Raises:
        Usage: it says what cannot be understood.
    """
    _parsed(table, lambda name: f"{where}: s3.{name}")
    return {
        _PREFIX + name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in table.items()
    }


def exported(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables among these that are settings of S3: what a process hands on to those that it starts."""
    return {name: value for name, value in environ.items() if name.startswith(_PREFIX) and value}


def found_by(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables among these by which a process finds S3 and talks to it: AWS's, and settings. Some are secrets."""
    return {name: value for name, value in environ.items() if name.startswith((_PREFIX, "AWS_"))}


def _parsed(given: Mapping[str, Any], called: Callable[[str], str]) -> S3Settings:
    settings = S3Settings(**{name: _value(name, value, called) for name, value in given.items()})
    if settings.sse and settings.sse not in _SSE:
        raise Usage(f"{called('sse')} is {settings.sse!r}: expected {' or '.join(map(repr, _SSE))}")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if getattr(settings, name) and settings.sse != "aws:kms":
            found = repr(settings.sse) if settings.sse else "not set"
            raise Usage(
                f"{called(name)} is for encryption by KMS, and {called('sse')} is {found}",
                hint="set sse to 'aws:kms', or leave the other out",
            )
    return settings


def _value(name: str, value: Any, called: Callable[[str], str]) -> Any:
    if name not in _FIELDS:
        near = get_close_matches(name, _FIELDS, n=1)
        raise Usage(
            f"{called(name)} is not a setting{f'; the nearest is {called(near[0])}' if near else ''}",
            hint=f"the settings of S3 are {', '.join(_FIELDS)}",
        )
    try:
        return msgspec.convert(value, _FIELDS[name], strict=False)
    except msgspec.ValidationError as error:
        raise Usage(f"{called(name)} is {value!r}: {str(error).replace('Expected', 'expected')}") from None
