"""Entries of exported tables in an Iceberg catalog. An entry names the newest metadata that an export has written.

REST catalogs replace an entry atomically (`overwrite` of the request that registers a table), and Glue if nobody has
changed the entry since it was read. In other catalogs, and REST catalogs that ignore `overwrite`, the entry is dropped
and created again, so for a moment there is none. Only the entry is dropped: no file is deleted.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from requests import exceptions as http

from ....errors import Refused, SlackwaterError, Unavailable, Usage
from ....store.objects.s3_client import NO_ANSWER
from .table import metadata_number

_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)*")


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
        with _translated_errors(catalog):
            return cls(load_catalog(catalog), namespace)

    def register(self, app: str, table: str, location: str, metadata: TableMetadata) -> str:
        """Make the entry of an app's table name the metadata at `location`, unless it names newer metadata.

        Creates the namespace and the entry if they are missing. The default namespace is the app's name. Returns the
        entry's full name. Raises `Refused` if the entry is another table's, or its change fails, and `Unavailable` if
        the catalog does not answer: repeating the call completes it.
        """
        catalog, namespace = self.catalog, self.namespace or app
        identifier = f"{namespace}.{table}"
        with _translated_errors(str(catalog.name)):
            try:
                entry = catalog.load_table(identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                if not catalog.namespace_exists(namespace):
                    catalog.create_namespace_if_not_exists(namespace)
                catalog.register_table(identifier, location)
            except FileNotFoundError as error:
                raise Refused(
                    f"{catalog.name}.{identifier} names metadata that no longer exists",
                    hint=f"drop the entry, for example by `pyiceberg drop table {identifier}`, and export again",
                ) from error
            else:
                self._update(identifier, entry, location, metadata)
        return f"{catalog.name}.{identifier}"

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
    table_input = _construct_table_input(
        name, location, metadata.properties, metadata, glue_table=entry, prev_metadata_location=old
    )
    glue._update_glue_table(database, name, table_input, entry["VersionId"])


@contextmanager
def _translated_errors(catalog: str) -> Iterator[None]:
    """Raise errors of a catalog as slackwater's errors. Catalogs raise whatever their client libraries raise."""
    try:
        yield
    except SlackwaterError:
        raise
    except (*NO_ANSWER, http.ConnectionError, http.Timeout, ServiceUnavailableError) as error:
        raise Unavailable(
            f"the Iceberg catalog {catalog!r} does not answer: {type(error).__name__}",
            hint=f"check its address: PYICEBERG_CATALOG__{catalog.upper()}__URI, or uri in .pyiceberg.yaml",
        ) from error
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise Refused(
            f"the Iceberg catalog {catalog!r} cannot be used: {text}",
            hint=f"check its settings: PYICEBERG_CATALOG__{catalog.upper()}__…, or .pyiceberg.yaml; nothing is lost: "
            "export again",
        ) from error
