"""Encryption at rest: asked for with everything that a client creates, and seen to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ....errors import Refused
from .settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CREATING = ("PutObject", "CreateMultipartUpload")


def encrypt(s3: "S3Client", settings: S3Settings, where: str) -> None:
    """Let a client ask for the settings' encryption whenever it creates an object, at once or in parts.

    In the client and not at the calls: a call that forgets it would write in the clear, and boto3's transfer manager
    does not know all of its parameters.

    From then on such a request raises:
        Refused: the server, as `where` names it, did not say that it has encrypted the object.
    """
    if not settings.sse:
        return
    given = (settings.sse, settings.sse_kms_key_id, settings.sse_bucket_key)
    names = ("ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled")
    wanted = {name: value for name, value in zip(names, given, strict=True) if value}

    def ask(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, **wanted}

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
