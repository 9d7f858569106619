"""Asking that rows of a table be changed: one object, until whoever has the stage has done it.

A runner does it between two of its batches, so that no batch is computed from rows that are others by then; where none
gives signs of life, the verb does it itself. What is asked for is done once: its version carries the request's id.
"""

from typing import Annotated

from msgspec import Meta, Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, keys, limits
from ...store.versions.manifest import Edit, Manifest
from ...store.versions.notes import Notes


class EditRequest(Struct, frozen=True):
    """What asks for rows of one table to be changed."""

    edit: Edit
    stage: limits.Name
    since: limits.Seq
    """The stage's newest version when it was asked for."""
    created_ms: limits.TimeMs
    sql: limits.Text = ""
    """The statement; empty where rows are given."""
    rows: Annotated[str, Meta(max_length=64)] = ""
    """The checksum of the rows that are to be there afterwards, an Arrow stream beside the request; or empty."""
    error: limits.Text = ""
    """Why it could not be done; empty as long as nobody tried in vain."""

    @property
    def id(self) -> str:
        """The id of the request, and of the edit that it asks for."""
        return self.edit.id

    def is_like(self, other: "EditRequest") -> bool:
        """Whether both ask for the same, by the same person."""
        mine, its = ((each.stage, each.sql, each.rows, each.edit.by) for each in (self, other))
        return mine == its


EDITS = Notes(EditRequest, keys.edits, lambda request: request.id)
"""Those that are not done yet, oldest first."""


def done_by(store: ObjectStore, request: EditRequest, head: Manifest) -> Manifest | None:
    """The version that did what was asked for, up to the `head`; None while there is none. A request for each since."""
    for each in history.backwards(store, head):
        if each.version <= request.since:
            return None
        if each.edited is not None and each.edited.id == request.id:
            return each
    return None


def withdraw(store: ObjectStore, app: str, request: EditRequest) -> None:
    """Take a request away, and its rows. Two requests."""
    if request.rows:
        store.delete(keys.edit_rows(app, request.id))
    EDITS.remove(store, request.id, app)
