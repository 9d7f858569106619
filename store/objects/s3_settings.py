"""Settings of S3 requests, and the S3 configuration and credentials that a process hands to other processes.

Encryption, timeouts, the retry budget and part sizes are set in the table `[s3]` of slackwater.toml or in variables
`SLACKWATER_S3_…`, which take precedence. All settings form one value, which is passed together with a store to every
process that uses S3.

Spark tasks run on machines that have neither endpoint nor credentials. The driver puts an `S3Access` into the closure
that Spark pickles for the tasks. It puts the `S3Access` nowhere else: not into an option, a setting, a variable or a
log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec

from ...errors import Usage
from .retry import MAX_RETRY_BURST, RETRIES_PER_S

_PREFIX = "SLACKWATER_S3_"
_MIB = 1 << 20
_SSE = ("AES256", "aws:kms")

_Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
_PartCount = Annotated[int, msgspec.Meta(ge=1, le=64)]
# S3's limits: the minimum size of all parts except the last, and the maximum size of one request.
_PartBytes = Annotated[int, msgspec.Meta(ge=5 * _MIB, le=5 << 30)]


class S3Settings(msgspec.Struct, frozen=True):
    """Encryption, timeouts, retries and part sizes of requests to S3."""

    sse: str = ""
    """Encryption at rest to request for each object: "AES256", "aws:kms", or empty for the bucket's default."""
    sse_kms_key_id: str = ""
    sse_bucket_key: bool = False
    """True to use an S3 Bucket Key, which reduces the number of requests to KMS."""
    connect_timeout_s: _Seconds = 5.0
    read_timeout_s: _Seconds = 30.0
    """Longest time without a byte from the server, in seconds."""
    attempt_timeout_s: _Seconds = 120.0
    """Longest time until an answer has arrived completely, in seconds."""
    retries_at_once: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = MAX_RETRY_BURST
    retries_per_s: Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] = RETRIES_PER_S
    multipart_bytes: _PartBytes = 16 * _MIB
    part_bytes: _PartBytes = 8 * _MIB
    parallel_parts: _PartCount = 4


_FIELDS: Mapping[str, Any] = {field.name: field.type for field in msgspec.structs.fields(S3Settings)}


def load_s3_settings(environ: Mapping[str, str], table: Mapping[str, Any] | None = None, where: str = "") -> S3Settings:
    """Return the settings of S3 requests from variables, then `table`, then defaults.

    `table` is `[s3]` of slackwater.toml. Empty variables are ignored. Errors name the table's settings with `where` in
    front: `slackwater.toml: s3.`. Raises `Usage` for an unknown setting or an invalid value.
    """
    variables = {name.removeprefix(_PREFIX): value for name, value in environ.items() if name.startswith(_PREFIX)}
    entries = [(where, name, value) for name, value in (table or {}).items()]
    entries += [(_PREFIX, name, value) for name, value in variables.items() if value]
    parsed = {name.lower(): (prefix + name, _parse_setting(prefix, name, value)) for prefix, name, value in entries}
    settings = S3Settings(**{name: value for name, (_, value) in parsed.items()})
    sse = parsed["sse"][0] if "sse" in parsed else "sse"
    if settings.sse and settings.sse not in _SSE:
        raise Usage(f"{sse} is {settings.sse!r}: expected {' or '.join(map(repr, _SSE))}")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if getattr(settings, name) and settings.sse != "aws:kms":
            actual = repr(settings.sse) if settings.sse else "not set"
            raise Usage(
                f"{parsed[name][0]} needs encryption by KMS, but {sse} is {actual}",
                hint="set sse to 'aws:kms', or remove the other setting",
            )
    return settings


def aws_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables by which AWS libraries find S3 and credentials. Some are secrets."""
    return {name: value for name, value in environ.items() if name.startswith("AWS_")}


def _parse_setting(prefix: str, name: str, value: Any) -> Any:
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
class S3ClientConfig:
    """Endpoint, region and settings of an S3 client, without secrets."""

    endpoint_url: str
    """Endpoint; if empty, the one in AWS's environment and files, or else AWS's own in the region."""
    region: str
    settings: S3Settings
    ca_bundle: str = ""
    """File of trusted certificates, needed on each machine. If empty, each machine uses its own certificates."""
    handed_over: bool = False
    """True if another process passed the configuration. This machine's AWS configuration is then ignored."""


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials that sign requests; `repr` hides them."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class S3Access:
    """Client configuration and current credentials by which another process can use S3."""

    client_config: S3ClientConfig
    credentials: S3Credentials


@runtime_checkable
class HasS3Access(Protocol):
    """Store that another process can open only with an `S3Access`."""

    def access(self) -> S3Access | None:
        """Return the client configuration and current credentials; None if the process has no credentials."""
