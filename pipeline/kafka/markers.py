"""Markers on the wire: one message in every partition of a channel, after all that the version wrote there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ...store.versions.manifest import Output
from .messages import marker_header
from .records import send

__all__ = ["write_markers"]


def write_markers(kafka: Mapping[str, str], output: Output, snapshot: str, patience_s: float) -> Output:
    """Write a snapshot's marker to the channel and say where it stands.

    A marker counts when a manifest names its offset: that of a writer which fails before its commit is passed over.

    Raises:
        Unavailable: The broker has been away for longer than `patience_s`.
    """
    messages = [(partition, b"") for partition in range(len(output.ends))]
    ends = send(kafka, output.topic, messages, marker_header(snapshot), patience_s=patience_s)
    after = tuple(ends[partition] for partition in range(len(output.ends)))
    return replace(output, ends=after, markers={**output.markers, snapshot: tuple(end - 1 for end in after)})
