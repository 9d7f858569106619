"""Entries of exported tables in an Iceberg catalog. An entry names the newest metadata that an export has written.

REST catalogs replace an entry atomically (`overwrite` of the request that registers a table). Glue replaces an entry if
it has not changed since it was read. In other catalogs, and in REST catalogs that ignore `overwrite`, the entry is
dropped and created again, so it is missing for a moment. Only the entry is dropped: no file is deleted.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.config import Config
from requests import exceptions as http

from ....common.redact import replace_secrets, secrets_of_url, without_secrets
from ....errors import Refused, SlackwaterError, Unavailable, Usage
from ....store.objects.s3_client import NO_ANSWER
from .table import metadata_number

_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)*")
_SECRET = re.compile("credential|token|secret|password|key", re.IGNORECASE)
"""Pattern of names of catalog settings whose values are never shown."""
_TRIES = 5
"""Maximum number of attempts to change an entry while other exports change it."""
_TIMEOUT_S = 60.0
"""Seconds without an answer after which a request to a REST catalog fails."""


@dataclass(frozen=True, slots=True)
class CatalogNamespace:
    """Namespace of a catalog, in which each exported table has an entry under its own name."""

    catalog: Catalog
    namespace: str = ""
    """Name of the namespace; empty for the name of the app."""

    @classmethod
    def open(cls, name: str) -> "CatalogNamespace":
        """Open `CATALOG` or `CATALOG.NAMESPACE`, with the settings that pyiceberg has for the catalog.

        Raises `Usage` for a malformed name, and `Refused` and `Unavailable` if the catalog cannot be opened.
        """
        catalog, _, namespace = name.partition(".")
        if not _NAME.fullmatch(name):
            raise Usage(f"--register {name!r}: expected CATALOG or CATALOG.NAMESPACE", hint="--register lake.flights")
        with _translated_errors(catalog, _configured(catalog)):
            _limit_waits()
            return cls(load_catalog(catalog), namespace)

    def register(self, app: str, table: str, location: str, metadata: TableMetadata) -> str:
        """Make the entry of an app's table name the metadata at `location`, unless the entry names newer metadata.

        Creates the namespace and the entry if they are missing. The default namespace is the app's name. Returns the
        entry's full name. Raises `Refused` if the entry belongs to another table or its change fails, and `Unavailable`
        if the catalog does not answer. A repeated call completes the change.
        """
        catalog, namespace = self.catalog, self.namespace or app
        identifier = f"{namespace}.{table}"
        with _translated_errors(str(catalog.name), catalog.properties):
            for remaining in reversed(range(_TRIES)):
                try:
                    self._register(namespace, identifier, location, metadata)
                    break
                except TableAlreadyExistsError:
                    # Another export has created the entry meanwhile. Or a REST catalog has an entry that it cannot
                    # load, and answers as if there were none.
                    if not remaining:
                        raise self._dangling_error(identifier) from None
                except (CommitFailedException, NoSuchTableError):  # another export has changed or dropped the entry
                    if not remaining:
                        raise
        return f"{catalog.name}.{identifier}"

    def _register(self, namespace: str, identifier: str, location: str, metadata: TableMetadata) -> None:
        try:
            entry = self.catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._create_namespace(namespace)
            self.catalog.register_table(identifier, location)
        except FileNotFoundError:
            raise self._dangling_error(identifier) from None
        else:
            self._update(identifier, entry, location, metadata)

    def _create_namespace(self, namespace: str) -> None:
        if self.catalog.namespace_exists(namespace):
            return
        try:
            self.catalog.create_namespace(namespace)
        except Exception:  # a SQL catalog raises its database's error if another export has created it meanwhile
            if not self.catalog.namespace_exists(namespace):
                raise

    def _dangling_error(self, identifier: str) -> Refused:
        return Refused(
            f"{self.catalog.name}.{identifier} names metadata that no longer exists",
            hint=f"pyiceberg --catalog {self.catalog.name} drop table {identifier}",
        )

    def _update(self, identifier: str, entry: Table, location: str, metadata: TableMetadata) -> None:
        if entry.location() != metadata.location:
            raise Refused(
                f"{self.catalog.name}.{identifier} is another table: its location is {entry.location()}, expected "
                f"{metadata.location}",
                hint=f"choose another namespace: --register {self.catalog.name}.NAMESPACE",
            )
        registered, newest = (
            metadata_number(metadata.location, at or "") for at in (entry.metadata_location, location)
        )
        # A table that was exported anew after its folder was deleted begins with number 1.
        if registered < newest or entry.metadata.table_uuid != metadata.table_uuid:
            self._replace(identifier, entry.metadata_location, location, metadata)

    def _replace(self, identifier: str, old: str, location: str, metadata: TableMetadata) -> None:
        if type(self.catalog).__name__ == "GlueCatalog":
            _replace_in_glue(self.catalog, identifier, old, location, metadata)
            return
        try:
            self.catalog.register_table(identifier, location, overwrite=True)
        except (NotImplementedError, TableAlreadyExistsError):
            with suppress(NoSuchTableError):
                self.catalog.drop_table(identifier)
            self.catalog.register_table(identifier, location)


def _replace_in_glue(catalog: Catalog, identifier: str, old: str, location: str, metadata: TableMetadata) -> None:
    # Like the end of pyiceberg's own commit, which would write another metadata file first.
    from pyiceberg.catalog.glue import GlueCatalog, _construct_table_input

    glue = cast("GlueCatalog", catalog)
    database, name = glue.identifier_to_database_and_table(identifier)
    entry = glue._get_glue_table(database, name)
    if entry["Parameters"]["metadata_location"] != old:
        raise CommitFailedException(f"{identifier} keeps changing")
    table_input = _construct_table_input(
        name, location, metadata.properties, metadata, glue_table=entry, prev_metadata_location=old
    )
    glue._update_glue_table(database, name, table_input, entry["VersionId"])


class _Session(requests.Session):
    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        return super().request(*arguments, **{"timeout": _TIMEOUT_S, **options})


def _limit_waits() -> None:
    """Give requests to REST catalogs and token servers a timeout, which pyiceberg lacks."""
    from pyiceberg.catalog import rest
    from pyiceberg.catalog.rest import auth

    def post(*arguments: Any, **options: Any) -> requests.Response:
        return requests.post(*arguments, **{"timeout": _TIMEOUT_S, **options})  # noqa: S113  it has one

    rest.Session = _Session  # type: ignore[attr-defined]
    auth.requests = SimpleNamespace(post=post)  # type: ignore[attr-defined, assignment]


def _configured(catalog: str) -> Mapping[str, Any]:
    with suppress(ValueError):  # which opening the catalog raises, too
        return Config().get_catalog_config(catalog) or {}
    return {}


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, value in properties.items():
        text = str(value)
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif _SECRET.search(name):
            yield from (text, text.rpartition(":")[2])  # a credential is ID:SECRET
        elif "@" in text:
            yield from secrets_of_url(text)


@contextmanager
def _translated_errors(catalog: str, properties: Mapping[str, Any]) -> Iterator[None]:
    """Raise errors of a catalog as slackwater's errors. Catalogs raise the errors of their client libraries.

    The errors have no causes, because causes may show the catalog's passwords.
    """
    try:
        yield
    except SlackwaterError:
        raise
    except (*NO_ANSWER, http.ConnectionError, http.Timeout, ServiceUnavailableError) as error:
        raise Unavailable(
            f"the Iceberg catalog {catalog!r} does not answer: {type(error).__name__}",
            hint=f"check its address: PYICEBERG_CATALOG__{catalog.upper()}__URI, or uri in .pyiceberg.yaml",
        ) from None
    except Exception as error:
        text = replace_secrets(str(error), _secrets(properties)).partition("\n")[0]
        text = without_secrets(text) or type(error).__name__
        raise Refused(
            f"the Iceberg catalog {catalog!r} cannot be used: {text}",
            hint=f"check its settings: PYICEBERG_CATALOG__{catalog.upper()}__…, or .pyiceberg.yaml; nothing is lost: "
            "export again",
        ) from None
