"""AWS sessions, of which S3 clients are made: this machine's own, and one that knows only what was handed over."""

import os
import socket
from pathlib import Path

from boto3.session import Session
from botocore.credentials import CredentialProvider, CredentialResolver, Credentials, ReadOnlyCredentials
from botocore.session import Session as Core

from ....errors import Refused
from .access import S3Access, S3Place

_NO_FILE = (None, None, os.devnull, None)
"""In place of where botocore looks for a file: setting, variable, default, conversion."""


class _Handed(Credentials):
    """Credentials from another process: those that it handed over last."""

    def __init__(self) -> None:
        super().__init__("", "", method="handed over")
        self.now = ReadOnlyCredentials("", "", None, None)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """What the next request is signed with."""
        return self.now


class _HandedProvider(CredentialProvider):
    METHOD = CANONICAL_NAME = "handed over"

    def __init__(self, credentials: _Handed) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> _Handed:
        """Botocore's hook."""
        return self._credentials


_handed: dict[S3Place, _Handed] = {}


def take(access: S3Access) -> S3Place:
    """From now on requests to this place are signed with these credentials, also those of clients that are there.

    So a worker that lives long has one client for a place, however often the credentials change.
    """
    given = access.credentials
    signing = _handed.setdefault(access.place, _Handed())
    # One assignment: nobody signs with halves of two.
    signing.now = ReadOnlyCredentials(given.access_key, given.secret_key, given.token or None, None)
    return access.place


def session_at(place: S3Place) -> Session:
    """The session of this machine, or for a place that was handed over one to which this machine says nothing.

    Raises:
        Refused: the place wants a file that this machine has not.
        BotoCoreError: this machine's configuration cannot be used.
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
    core.register_component("credential_provider", CredentialResolver([_HandedProvider(_handed[place])]))
    return Session(botocore_session=core, region_name=place.region)
