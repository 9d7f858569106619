"""Copies of sources' lists of files in other stores: an offset has no meaning without the list."""

from __future__ import annotations

from collections.abc import Iterable

from ....errors import Refused
from ....store.read.copier import Copier
from ....store.versions import keys
from ..declared_source import find_source
from .file_list import FileList


def copy_sources(copier: Copier, topics: Iterable[str]) -> None:
    """Copy the lists of those topics that are sources.

    Raises `Refused` if the target has another source of this name, or a list that is no beginning or continuation.
    """
    for topic in sorted(set(filter(keys.is_source, topics))):
        own, other = find_source(copier.source, topic), find_source(copier.target, topic)
        if own is not None and other is not None and (own.id != other.id or _have_diverged(copier, topic)):
            raise Refused(
                f"{copier.target.url} has another source named {topic!r}, with another list of files",
                hint="choose another store root: a copy of an app includes the lists of its sources",
            )
        # In the order of their numbers: a list that ends with a gap would be continued in the gap.
        for info in sorted(copier.missing(copier.source.list(keys.source(topic))), key=lambda info: info.key):
            copier.copy_object(info.key)


def _have_diverged(copier: Copier, topic: str) -> bool:
    own, other = FileList(topic), FileList(topic)
    own.refresh(copier.source)
    other.refresh(copier.target)
    count = min(len(own.files), len(other.files))
    listed = copier.source.list(keys.source_files(topic))
    return own.files[:count] != other.files[:count] or bool(copier.different(listed))
