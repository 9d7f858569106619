"""Tokens with which Kafka clients log in to Amazon MSK as an IAM user or role.

A token is a presigned URL of the action `kafka-cluster:Connect`, in base64, in the format of AWS's own signers
(github.com/aws/aws-msk-iam-sasl-signer-python). Signing makes no request.
"""

import base64
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from ...common import instants
from ...common.redact import without_secrets
from ...errors import Refused, SlackwaterError, Unavailable, Usage
from ...store.objects.s3_client import (
    CREDENTIALS_HINT,
    NO_ANSWER,
    is_transient,
    session_for,
    silence_reason,
)
from ...store.objects.s3_settings import S3ClientConfig, S3Settings

LIFETIME_S = 900
_ACTION = {"Action": "kafka-cluster:Connect"}
_MSK_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class MskTokens:
    """Creates tokens for one cluster from this process's AWS credentials, which boto3's chain finds and renews.

    Raises `Usage` if the region is unknown, `Refused` without credentials or with an unusable AWS configuration, and
    `Unavailable` if the server or program that provides credentials fails temporarily.
    """

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        named = _MSK_REGION.search(brokers)
        with self._translated_errors():
            session = session_for(S3ClientConfig("", named[1] if named else "", S3Settings()))
            self._region = str(session.get_config_variable("region") or "")
            if (credentials := session.get_credentials()) is None:
                raise boto.NoCredentialsError
            self._credentials = credentials
        if not self._region:
            raise Usage(
                f"a token for Kafka at {brokers} needs the cluster's AWS region, which these names do not contain",
                hint="set AWS_REGION to the cluster's",
            )

    def new(self) -> tuple[str, float]:
        """Return a new token, and the time at which it expires, in seconds since 1970.

        Raises `Refused` and `Unavailable` if the credentials cannot be renewed.
        """
        request = AWSRequest("GET", f"https://kafka.{self._region}.amazonaws.com/", params=_ACTION)
        expires_s = float(instants.now_ms() // 1000 + LIFETIME_S)  # AWS's times are whole seconds
        with self._translated_errors():
            frozen = self._credentials.get_frozen_credentials()
            SigV4QueryAuth(frozen, "kafka-cluster", self._region, expires=LIFETIME_S).add_auth(request)
        # Like AWS's signers, name the client after the signature.
        url = f"{request.url}&User-Agent=slackwater"
        return base64.urlsafe_b64encode(url.encode()).decode().rstrip("="), expires_s

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise errors of boto3's chain as slackwater's errors, without secrets and without their causes."""
        try:
            yield
        except SlackwaterError:
            raise
        except (boto.BotoCoreError, boto.ClientError, OSError, ValueError, RuntimeError) as error:
            reason = silence_reason(error) if isinstance(error, NO_ANSWER) else without_secrets(str(error))
            raise (Unavailable if _is_passing(error) else Refused)(
                f"{socket.gethostname()} cannot make a token for Kafka at {self._brokers}: {' '.join(reason.split())}",
                hint=f"{CREDENTIALS_HINT}, or a role of the machine; see `aws sts get-caller-identity`",
            ) from None


def _is_passing(error: Exception) -> bool:
    if isinstance(error, boto.ClientError):
        return is_transient(error)
    return isinstance(error, (*NO_ANSWER, boto.CredentialRetrievalError, boto.MetadataRetrievalError))
