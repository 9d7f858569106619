"""S3 clients of this process, and translation of botocore's errors.

Clients belong to a session of botocore, because boto3's session would load many unused modules. The session has this
machine's AWS configuration, or only the configuration of another process. Clients request encryption at rest for each
object that they create, and check that the server confirms it.
"""

import logging
import os
import re
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from botocore import exceptions as boto
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.session import Session
from cachetools import LRUCache
from urllib3.exceptions import HTTPError

from ...common import runtime
from ...common.redact import without_secrets
from ...errors import Forbidden, NotFound, Refused, Usage
from .retry import RetryBudget, TransientError
from .s3_settings import S3Access, S3ClientConfig, S3Settings, aws_variables

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONNECTIONS = 32
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn")
_AWS_OWN = re.compile(r"https://s3\.([a-z0-9-]+\.)?amazonaws\.com(\.cn)?")
_USER = re.compile(r"//[^/]*@")

_NO_CONFIG_FILE = (None, None, os.devnull, None)
"""Setting of botocore, as (name, variable, default, conversion), that disables configuration files."""

DIRECTORY_BUCKET = "--x-s3"
"""End of the names of buckets of S3 Express One Zone: `s3-express-differences` in Amazon's S3 User Guide."""

CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_RIGHTS_HINT = "they need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket here"
_SESSION_HINT = "they need s3express:CreateSession here"
_KMS_HINT = "and kms:GenerateDataKey and kms:Decrypt of the key in [s3] sse_kms_key_id"

_THROTTLED = ("429", "BandwidthLimitExceeded", "RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException")
# S3 answers with the first code while another conditional put of the key is in progress.
_BUSY = ("ConditionalRequestConflict", "InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable")
_TRANSIENT_CODES = frozenset((*_THROTTLED, *_BUSY, "TooManyRequests", "TooManyRequestsException"))

# versitygw answers with this code and status 404 for an unknown access key.
_UNKNOWN_ACCESS_KEY = "XAdminUserNotFound"

_REGION_CODES = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)

_REASONS = (
    (boto.SSLError, "the TLS connection failed"),
    (boto.ConnectTimeoutError, "the connection timed out"),
    (boto.ReadTimeoutError, "no answer in time"),
    (boto.ProxyConnectionError, "the proxy cannot be reached"),
    (boto.EndpointConnectionError, "cannot connect"),
)


NO_ANSWER = (boto.ConnectionError, boto.HTTPClientError)
"""Errors of botocore if a server of AWS does not answer."""


class Connection(NamedTuple):
    """Client, credentials and retry budget, shared by all stores of this process with one client configuration."""

    s3: "S3Client"
    endpoint: str
    budget: RetryBudget
    credentials: Credentials | None
    """Signing credentials, which renew themselves if temporary; None if none are configured."""
    config_for_others: S3ClientConfig


_connections: LRUCache[tuple[object, ...], Connection] = LRUCache(64)
_lock = runtime.lock()


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


# It warns of credentials that cannot be renewed with the error's traceback, which shows passwords in URLs.
logging.getLogger("botocore.credentials").addFilter(_without_traceback)


def _after_fork() -> None:
    # In the child, a thread that does not exist may hold the lock.
    global _lock
    _lock = runtime.lock()


os.register_at_fork(after_in_child=_after_fork)


def connection(client_config: S3ClientConfig, read_timeout_s: float) -> Connection:
    """Return this process's S3 client for a configuration. It is created once (about 0.1 s), for all threads.

    A forked child gets its own client, and so does a process whose AWS environment has changed. `read_timeout_s` is the
    longest wait for an answer. Raises `Usage` if the endpoint is not a URL, and `Refused` if the AWS configuration
    cannot be used, such as a profile that does not exist.
    """
    key = (os.getpid(), client_config, read_timeout_s, tuple(sorted(aws_variables(os.environ).items())))
    with _lock:
        if key not in _connections:
            _connections[key] = _connect(client_config, read_timeout_s)
        return _connections[key]


def _connect(client_config: S3ClientConfig, read_timeout_s: float) -> Connection:
    settings = client_config.settings
    try:
        session = session_for(client_config)
        s3 = _new_client(session, client_config, read_timeout_s)
        bundle = str(session.get_config_variable("ca_bundle") or "")
        credentials = session.get_credentials()
    except ValueError as error:
        raise Usage(
            f"the S3 endpoint is not a URL: {without_secrets(str(error))}",
            hint="set AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL to http://host:port",
        ) from None
    except boto.BotoCoreError as error:
        raise Refused(f"the AWS configuration cannot be used: {error}", hint=CREDENTIALS_HINT) from error
    endpoint = s3.meta.endpoint_url
    require_encryption(s3, settings, endpoint)
    budget = RetryBudget(settings.retries_at_once, settings.retries_per_s)
    own = "" if _AWS_OWN.fullmatch(endpoint) else endpoint
    elsewhere = S3ClientConfig(own, s3.meta.region_name, settings, bundle, handed_over=True)
    return Connection(s3, endpoint, budget, credentials, elsewhere)


def _new_client(session: Session, client_config: S3ClientConfig, read_timeout_s: float) -> "S3Client":
    # One attempt each: `retry` repeats them, within its own deadline.
    config = Config(
        connect_timeout=min(client_config.settings.connect_timeout_s, read_timeout_s),
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=_CONNECTIONS,
    )
    # Servers other than AWS often support neither a bucket in the host name nor checksums in trailers.
    elsewhere = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )

    def create(url: str, config: Config) -> "S3Client":
        verify = client_config.ca_bundle or None
        client = cast("S3Client", session.create_client("s3", endpoint_url=url or None, config=config, verify=verify))
        client.meta.events.register("before-parse.s3", _require_whole_body)
        return client

    client = create(client_config.endpoint_url, config)
    # Only a client resolves the endpoint from the environment and the configuration files.
    endpoint = without_credentials(client.meta.endpoint_url)
    if "@" in endpoint:
        raise ValueError("it has a '@' after its host")
    if not (urlsplit(endpoint).hostname or "").endswith(_AWS_HOSTS):
        config = config.merge(elsewhere)
    elif endpoint == client.meta.endpoint_url:
        return client
    return create(endpoint, config)


def _require_whole_body(response_dict: dict[str, Any], **_: Any) -> None:
    """Raise `IncompleteReadError` for a truncated listing or error response, because botocore checks only objects."""
    body, length = response_dict["body"], int(response_dict["headers"].get("content-length") or 0)
    if isinstance(body, bytes) and len(body) < length:
        raise boto.IncompleteReadError(actual_bytes=len(body), expected_bytes=length)


class _HandedOverCredentials(Credentials):
    """Newest credentials from another process. botocore finds them through this object."""

    def __init__(self) -> None:
        super().__init__("", "", method="handed over")
        self.frozen = ReadOnlyCredentials("", "", None, None)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        return self.frozen

    def load_credentials(self) -> Self:
        return self


_credentials_by_config: dict[S3ClientConfig, _HandedOverCredentials] = {}


def use_access(access: S3Access) -> S3ClientConfig:
    """Sign requests with another process's credentials, even in existing clients. Returns the client configuration.

    So a long-lived worker keeps one client, however often the credentials change.
    """
    new = access.credentials
    # A single assignment is atomic: no request is signed with parts of two credentials.
    _credentials_by_config.setdefault(access.client_config, _HandedOverCredentials()).frozen = ReadOnlyCredentials(
        new.access_key, new.secret_key, new.token or None, None
    )
    return access.client_config


def session_for(client_config: S3ClientConfig) -> Session:
    """Return this machine's AWS session, or a session that has only the configuration of another process.

    Raises `Refused` if the configuration names a file that this machine lacks, and `BotoCoreError` if this machine's
    configuration cannot be used.
    """
    if not client_config.handed_over:
        # botocore itself reads only AWS_DEFAULT_REGION.
        return _in_region(Session(), client_config.region or os.environ.get("AWS_REGION", ""))
    if client_config.ca_bundle and not Path(client_config.ca_bundle).exists():
        raise Refused(
            f"{socket.gethostname()} has no file {client_config.ca_bundle}, which AWS_CA_BUNDLE names",
            hint="the setting comes from the process that runs the app; copy the file to each machine that runs "
            "Spark tasks",
        )
    # This machine's profile and files may belong to another user.
    overrides = {
        "profile": (None, None, None, None),
        "config_file": _NO_CONFIG_FILE,
        "credentials_file": _NO_CONFIG_FILE,
    }
    session = Session(overrides)
    session.set_config_variable("ignore_configured_endpoint_urls", True)
    session.register_component("credential_provider", _credentials_by_config[client_config])
    return _in_region(session, client_config.region)


def _in_region(session: Session, region: str) -> Session:
    if region:
        session.set_config_variable("region", region)
    return session


def require_encryption(s3: "S3Client", settings: S3Settings, where: str) -> None:
    """Make a client request the configured encryption whenever it creates an object, in one put or in parts.

    From then on, creating an object raises `Refused` if the server, named `where`, does not confirm the encryption.
    """
    if not settings.sse:
        return
    names = {"ServerSideEncryption": "sse", "SSEKMSKeyId": "sse_kms_key_id", "BucketKeyEnabled": "sse_bucket_key"}
    requested = {name: value for name, field in names.items() if (value := getattr(settings, field))}

    def ask(params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
        context[__name__] = params["Bucket"]
        # A directory bucket encrypts as its own configuration says, and refuses other requests.
        return params if params["Bucket"].endswith(DIRECTORY_BUCKET) else {**params, **requested}

    def see(parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        # Some servers ignore unknown headers, and would store the object unencrypted.
        bucket = context[__name__]
        if "Error" not in parsed and parsed.get("ServerSideEncryption") != settings.sse:
            if upload := parsed.get("UploadId"):
                s3.abort_multipart_upload(Bucket=bucket, Key=parsed["Key"], UploadId=upload)
            raise Refused(
                f"{where}, bucket {bucket!r}, did not encrypt an object: asked for {settings.sse!r}, "
                f"found {parsed.get('ServerSideEncryption') or 'nothing'!r} in its answer",
                hint=f"make {settings.sse} the default encryption of {bucket}"
                if bucket.endswith(DIRECTORY_BUCKET)
                else "use a server that encrypts, or take sse out of [s3] in slackwater.toml "
                "(SLACKWATER_S3_SSE) and encrypt the server's disks",
            )

    for operation in ("PutObject", "CreateMultipartUpload"):
        # The type stubs do not allow handlers with a return value.
        s3.meta.events.register(f"provide-client-params.s3.{operation}", cast("Callable[..., None]", ask))
        s3.meta.events.register(f"after-call.s3.{operation}", see)


def without_credentials(url: str) -> str:
    """Return the URL without user and password, which boto3's errors would show."""
    return _USER.sub("//", url, count=1)


def silence_reason(error: Exception) -> str:
    """Return the reason why a server did not answer. boto3's own message repeats the URL."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "the connection broke")


def is_transient(error: boto.ClientError) -> bool:
    """Return True if a server of AWS asks for a retry, or has failed."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # Some servers answer 501 because they do not support conditional writes.
    return error_code(error) in _TRANSIENT_CODES or status == 429 or (status >= 500 and status != 501)


def error_code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def translate_errors(bucket: str, endpoint: str, expected: Collection[str] = ()) -> Iterator[None]:
    """Raise boto3's errors as slackwater's errors. A `ClientError` with an `expected` code is raised unchanged.

    The error is chosen by S3's error code, not by the HTTP status: web servers that are not S3 also answer 404, and so
    does versitygw for unknown credentials.

    Raises:
        TransientError: no answer, or an answer that asks for a retry.
        NotFound: there is no such bucket.
        Forbidden: the credentials or permissions are insufficient.
        Refused: the region is wrong, or another error that a retry cannot fix.
    """
    where = f"{endpoint}, bucket {bucket!r}"
    try:
        yield
    except boto.ClientError as error:
        code, status = error_code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = error.response.get("Error", {}).get("Message") or "no reason given"
        if code == "NoSuchBucket":
            raise NotFound(
                "bucket",
                bucket,
                found=f"the S3 server at {endpoint} does not have it",
                hint=f"create it (aws s3 mb s3://{bucket}) or name another store root",
            ) from None
        if code in expected:
            raise
        if is_transient(error):
            raise TransientError(f"{status} {code}") from error
        if code in _REGION_CODES or status == 301:
            raise Refused(
                f"{where} belongs to another region: {message}", hint="set AWS_REGION to the bucket's"
            ) from None
        if status in (401, 403) or code == _UNKNOWN_ACCESS_KEY:
            rights = _SESSION_HINT if bucket.endswith(DIRECTORY_BUCKET) else _RIGHTS_HINT
            raise Forbidden(
                f"{where} refused the credentials or the request ({code}): {message}",
                hint=f"{CREDENTIALS_HINT}; {rights}, {_KMS_HINT} if there is one",
            ) from None
        raise Refused(f"{where} answered {status} {code}: {message}") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise Refused(f"no credentials for {where}: {error}", hint=CREDENTIALS_HINT) from None
    except (*NO_ANSWER, boto.IncompleteReadError, HTTPError) as error:
        raise TransientError(silence_reason(error)) from error
    except (boto.ChecksumError, boto.FlexibleChecksumError) as error:
        raise TransientError("the answer does not match its checksum") from error
    except boto.BotoCoreError as error:
        raise Refused(f"cannot send requests to {where}: {error}", hint=CREDENTIALS_HINT) from error
