"""Every field of the document in an exported folder is documented."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from slackwater.operations.exchange.export import Export, ExportedChannel, ExportedTable, File
from slackwater.store.versions.manifest import Column, EventTime, Input, Manifest, Output, Table

PAGE = (Path(__file__).parents[4] / "docs" / "leaving.md").read_text(encoding="utf-8")
INSIDE = {
    EventTime: {"ahead", "late", "bound_ms", "by_clock", "behind_ms"},
    Input: {"rows"},
    Output: {"attempts", "rows", "markers"},
}
"""Undocumented fields: those that concern one version, so they are empty there, and those that `due_ms` covers."""


def structs(kind: Any) -> set[type[Struct]]:
    """Return the structs in a type, without those nested in them."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {kind}
    return {found for each in get_args(kind) for found in structs(each)}


def test_every_field_of_the_document_is_documented() -> None:
    words = set(re.findall(r"`([\w.]+)`", PAGE))
    for kind in (
        Export,
        ExportedTable,
        ExportedChannel,
        File,
        Manifest,
        Input,
        Output,
        Table,
        Column,
        EventTime,
    ):
        missing = set(get_type_hints(kind)) - INSIDE.get(kind, set()) - words
        assert not missing, kind.__name__
    described = {Export, ExportedTable, ExportedChannel, File}
    inside = {found for each in described for hint in get_type_hints(each).values() for found in structs(hint)}
    assert inside <= described | {Manifest}
