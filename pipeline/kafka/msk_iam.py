"""Tokens with which Kafka clients log in to Amazon MSK as an IAM user or role.

A token is a presigned URL of the action `kafka-cluster:Connect`, in base64, as made by AWS's own signers
(github.com/aws/aws-msk-iam-sasl-signer-python). Signing makes no request.
"""

import base64
import re
import socket

from botocore import exceptions as boto
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from ...common import instants
from ...errors import Refused, Unavailable, Usage
from ...store.objects.s3_client import CREDENTIALS_HINT, NO_ANSWER, session_for
from ...store.objects.s3_settings import S3ClientConfig, S3Settings

LIFETIME_S = 900
_ACTION = {"Action": "kafka-cluster:Connect"}
_MSK_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class MskTokens:
    """Maker of tokens for one cluster, with this process's AWS credentials, which boto3's chain finds and renews.

    Raises `Usage` if the region is unknown, `Refused` without credentials or with an unusable AWS configuration, and
    `Unavailable` if the server that has the credentials does not answer.
    """

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        named = _MSK_REGION.search(brokers)
        try:
            session = session_for(S3ClientConfig("", named[1] if named else "", S3Settings()))
            self._region = str(session.get_config_variable("region") or "")
            if (credentials := session.get_credentials()) is None:
                raise boto.NoCredentialsError
            self._credentials = credentials
        except (boto.BotoCoreError, boto.ClientError) as error:
            raise self._error(error) from error
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
        try:
            frozen = self._credentials.get_frozen_credentials()
            SigV4QueryAuth(frozen, "kafka-cluster", self._region, expires=LIFETIME_S).add_auth(request)
        except (boto.BotoCoreError, boto.ClientError) as error:
            raise self._error(error) from error
        # Like AWS's signers, name the client after the signature.
        url = f"{request.url}&User-Agent=slackwater"
        return base64.urlsafe_b64encode(url.encode()).decode().rstrip("="), expires_s

    def _error(self, error: Exception) -> Refused | Unavailable:
        kind = Unavailable if isinstance(error, NO_ANSWER) else Refused
        reason = " ".join(str(error).split())
        sentence = f"{socket.gethostname()} cannot make a token for Kafka at {self._brokers}: {reason}"
        return kind(sentence, hint=f"{CREDENTIALS_HINT}, or a role of the machine; see `aws sts get-caller-identity`")
