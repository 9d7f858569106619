"""Requests to edit rows of a table: one object, until the edit is done.

A runner does the edit between two batches, so that no batch uses outdated rows; without a live
runner, the verb does it. Each request is done once, since the version of the edit has the request's id.
"""

from typing import Annotated

from msgspec import Meta, Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, keys, limits
from ...store.versions.codec import Notes
from ...store.versions.manifest import Edit, Manifest


class EditRequest(Struct, frozen=True):
    """Request to edit rows of one table."""

    edit: Edit
    stage: limits.Name
    since: limits.Seq
    """Newest version of the stage at the time of the request."""
    created_ms: limits.TimeMs
    sql: limits.Text = ""
    """SQL statement; empty if rows are given."""
    rows: Annotated[str, Meta(max_length=64)] = ""
    """Checksum of the rows to put into the table, stored as an Arrow stream beside the request; or empty."""
    error: limits.Text = ""
    """Reason why the edit failed; empty unless it was tried."""

    @property
    def id(self) -> str:
        return self.edit.id

    def is_like(self, other: "EditRequest") -> bool:
        """Return True if both requests are for the same edit by the same person."""
        own_fields, other_fields = (
            (compared.stage, compared.sql, compared.rows, compared.edit.by) for compared in (self, other)
        )
        return own_fields == other_fields


EDITS = Notes(EditRequest, keys.edits, lambda request: request.id)
"""Open requests, oldest first."""


def done_by(store: ObjectStore, request: EditRequest, head: Manifest) -> Manifest | None:
    """Return the version with the requested edit, up to `head`; None for none. One request for each version since."""
    for version in history.backwards(store, head):
        if version.version <= request.since:
            return None
        if version.edited is not None and version.edited.id == request.id:
            return version
    return None


def withdraw(store: ObjectStore, app: str, request: EditRequest) -> None:
    """Delete a request and its rows. Two requests."""
    if request.rows:
        store.delete(keys.edit_rows(app, request.id))
    EDITS.remove(store, request.id, app)
