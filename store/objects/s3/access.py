"""How one process gets to S3, so that another, which has nothing of it, can get there likewise.

Tasks of Spark run on machines that know neither endpoint nor credentials. The driver puts an `S3Access` into what Spark
pickles for them. It stands nowhere else: not in an option, a setting, a variable or a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .settings import S3Settings


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
        ...
