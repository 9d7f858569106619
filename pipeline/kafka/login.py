"""Logins of Kafka clients: secrets in files, which may change while the app runs, and tokens.

slackwater adds two kinds of properties to librdkafka's: `slackwater.auth`, and `NAME.file`, the path of a file with the
value of the property NAME. These properties are passed to other processes, which read the files and create tokens
themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.secret_file import SecretFile
from ...common.validation import expand_home
from ...errors import SlackwaterError, Usage

if TYPE_CHECKING:
    from .msk_iam import MskTokens
    from .protocol import Properties

_log = logging.getLogger("slackwater")

AUTH = "slackwater.auth"
MSK_IAM = "msk-iam"
FILE_SUFFIX = ".file"
_OF_LIBRDKAFKA = {f"sasl.oauthbearer.assertion{name}.file" for name in ("", ".private.key", ".jwt.template")}
_MSK_PROPERTIES = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}


def secret_files(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of files with secrets, by property."""
    named = {name: path for name, path in kafka.items() if name.endswith(FILE_SUFFIX) and name not in _OF_LIBRDKAFKA}
    return {name.removesuffix(FILE_SUFFIX): path for name, path in named.items()}


def with_secret_files_in(folder: Path, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with absolute paths of secret files; a relative path starts at `folder`.

    Raises `Usage` for a path in the home folder of an unknown user.
    """
    paths = {f"{name}{FILE_SUFFIX}": path for name, path in secret_files(kafka).items()}
    expanded = {name: expand_home(f"Kafka's property {name}", path) for name, path in paths.items()}
    return {**kafka, **{name: str(folder / path) for name, path in expanded.items()}}


def check_login(kafka: Properties) -> None:
    """Raise `Usage` for an unknown `slackwater.auth`, and for a property with both a value and a file."""
    if (auth := kafka.get(AUTH, MSK_IAM)) != MSK_IAM:
        raise Usage(
            f"Kafka's setting auth is {auth!r}: expected {MSK_IAM!r}",
            hint="other logins are set by properties of librdkafka: docs/operating.md#kafka-logins",
        )
    for name in secret_files(kafka):
        if name in kafka:
            raise Usage(
                f"Kafka's property {name} has both a value and a file, {kafka[name + FILE_SUFFIX]}",
                hint=f"remove {name} or {name}{FILE_SUFFIX} from the settings",
            )


def uses_aws(kafka: Properties) -> bool:
    return kafka.get(AUTH) == MSK_IAM


class Login:
    """Login of this process's clients at one cluster."""

    def __init__(self, kafka: Properties) -> None:
        files = secret_files(kafka)
        own = {AUTH, *(f"{name}{FILE_SUFFIX}" for name in files)}
        self._brokers = kafka["bootstrap.servers"]
        self._properties = {name: value for name, value in kafka.items() if name not in own}
        self._files = {name: SecretFile(path, f"Kafka's {name}", f"{name}.file") for name, path in files.items()}
        self._uses_msk = uses_aws(kafka)
        self._tokens: MskTokens | None = None
        self.token_error: SlackwaterError | None = None
        """Error of the last attempt to create a token; None after a success."""

    def secrets(self) -> dict[str, str]:
        """Return the current values of properties whose values are in files.

        Raises `Refused` if a file was never readable.
        """
        return {name: file.read() for name, file in self._files.items()}

    @property
    def unread_secrets(self) -> tuple[str, ...]:
        """Sentences that explain why current contents of files are not used."""
        return tuple(file.unread for file in self._files.values() if file.unread)

    def properties(self) -> dict[str, object]:
        """Return librdkafka's properties for a new client, and confluent-kafka's callback for tokens.

        Raises `Refused` and `Unavailable` if a secret cannot be read or no token can be created, and `Usage`.
        """
        properties: dict[str, object] = {**self._properties, **self.secrets()}
        if not self._uses_msk:
            return properties
        if self._tokens is None:
            from .msk_iam import MskTokens

            self._tokens = MskTokens(self._brokers)
        # A client with a callback that fails would be created only after ten seconds, without the callback's error.
        self._new_token()
        return {**_MSK_PROPERTIES, **properties, "oauth_cb": self._new_token}

    def _new_token(self, _config: str = "") -> tuple[str, float]:
        """Return a token and its expiry time. After an error, librdkafka calls this method again in ten seconds."""
        assert self._tokens is not None  # noqa: S101  created before
        try:
            token = self._tokens.new()
        except SlackwaterError as error:
            if self.token_error is None:
                _log.warning("%s; the open connections stay until the last token ends", error.message)
            self.token_error = error
            raise
        self.token_error = None
        return token
