"""Iceberg tables that a moment's tables were made."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..moments.cut.graph import Cut
from . import formats
from .document import TableBlock, Title
from .shown import Words, fields, result

if TYPE_CHECKING:
    from ..keep.iceberg.export import ExportedTable


@result
def exported(done: "Sequence[ExportedTable]", cut: Cut, ref: str, root: str) -> Words:
    """What each table is now, and what was written for it."""
    written = sum(each.written_bytes for each in done)
    yield Title(f"{ref} as Iceberg tables in {root}, {formats.size(written)} written")
    lines = (
        (
            each.name,
            f"v{each.version}",
            each.rows,
            each.files,
            formats.size(each.bytes),
            each.hidden,
            "new snapshot" if each.moved else "as it was",
        )
        for each in done
    )
    yield TableBlock.of(("table", ">version", ">rows", ">files", ">bytes", ">hidden", ""), lines)
    if copied := sum(each.copied for each in done):
        yield f"{formats.plural(copied, 'file')} from before a migration had to be written anew"
    if not done:
        yield f"{cut.ref} has no table: none of its stages keeps state"
    return {
        "root": root,
        **fields(cut, "app", "versions"),
        "thinned_out": cut.thinned,
        "tables": [asdict(each) for each in done],
    }
