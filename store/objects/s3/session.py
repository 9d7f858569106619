"""AWS sessions, of which S3 clients are made: this machine's own, and one that knows only what was handed over.

Also encryption at rest, which is asked for with everything that a client creates, and seen to.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from boto3.session import Session
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.session import Session as Core

from ....errors import Refused
from .settings import S3Access, S3Place, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


_NO_FILE = (None, None, os.devnull, None)
"""In place of where botocore looks for a file: setting, variable, default, conversion."""
_CREATING = ("PutObject", "CreateMultipartUpload")


class _Handed(Credentials):
    """Credentials that another process handed over last; to botocore also the resolver, which finds them."""

    def __init__(self) -> None:
        super().__init__("", "", method="handed over")
        self.now = ReadOnlyCredentials("", "", None, None)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """What the next request is signed with."""
        return self.now

    def load_credentials(self) -> Self:
        """These."""
        return self


_handed: dict[S3Place, _Handed] = {}


def take(access: S3Access) -> S3Place:
    """From now on requests to this place are signed with these credentials, also those of clients that are there.

    So a worker that lives long has one client for a place, however often the credentials change.
    """
    new = access.credentials
    # One assignment: nobody signs with halves of two.
    _handed.setdefault(access.place, _Handed()).now = ReadOnlyCredentials(
        new.access_key, new.secret_key, new.token or None, None
    )
    return access.place


def session_at(place: S3Place) -> Session:
    """The session of this machine, or for a place that was handed over one to which this machine says nothing.

    Raises `Refused` where the place wants a file that this machine has not, and `BotoCoreError` where this machine's
    configuration cannot be used.
    """
    if not place.handed_over:
        # boto3 by itself knows AWS_DEFAULT_REGION only.
        return Session(region_name=place.region or os.environ.get("AWS_REGION") or None)
    if place.ca_bundle and not Path(place.ca_bundle).exists():
        raise Refused(
            f"{socket.gethostname()} has no {place.ca_bundle}, where AWS_CA_BUNDLE says that certificates to trust are",
            hint="AWS_CA_BUNDLE is that of the process that runs the app; put the file on each machine that has tasks",
        )
    # This machine's profile and files may be somebody else's.
    nothing = {"profile": (None, None, None, None), "config_file": _NO_FILE, "credentials_file": _NO_FILE}
    core = Core(nothing)
    core.set_config_variable("ignore_configured_endpoint_urls", True)
    core.register_component("credential_provider", _handed[place])
    return Session(botocore_session=core, region_name=place.region)


def encrypt(s3: "S3Client", settings: S3Settings, where: str) -> None:
    """Let a client ask for the settings' encryption whenever it creates an object, at once or in parts.

    In the client and not at the calls: a call that forgets it would write in the clear, and boto3's transfer manager
    does not know all of its parameters.

    From then on such a request raises:
        Refused: the server, as `where` names it, did not say that it has encrypted the object.
    """
    if not settings.sse:
        return
    names = {"ServerSideEncryption": "sse", "SSEKMSKeyId": "sse_kms_key_id", "BucketKeyEnabled": "sse_bucket_key"}
    requested = {name: value for name, field in names.items() if (value := getattr(settings, field))}

    def ask(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, **requested}

    def see(parsed: dict[str, Any], **_: Any) -> None:
        # Some servers take any header that they do not know, and would keep the object in the clear.
        if "Error" not in parsed and parsed.get("ServerSideEncryption") != settings.sse:
            if upload := parsed.get("UploadId"):
                s3.abort_multipart_upload(Bucket=parsed["Bucket"], Key=parsed["Key"], UploadId=upload)
            raise Refused(
                f"{where} did not encrypt an object: asked for {settings.sse!r}, "
                f"found {parsed.get('ServerSideEncryption') or 'nothing'!r} in its answer",
                hint="use a server that encrypts, or take sse out of [s3] in slackwater.toml "
                "(SLACKWATER_S3_SSE) and encrypt the server's disks",
            )

    for operation in _CREATING:
        # The stubs know of no handler that returns something.
        s3.meta.events.register(f"provide-client-params.s3.{operation}", cast("Callable[..., None]", ask))
        s3.meta.events.register(f"after-call.s3.{operation}", see)
