"""Markers on the wire: one message in every partition of a channel, after all that the version wrote there."""

from __future__ import annotations

from collections.abc import Mapping

from .messages import marker_header
from .records import send


def write_markers(
    kafka: Mapping[str, str], topic: str, partitions: int, snapshot: str, patience_s: float
) -> tuple[int, ...]:
    """Write a snapshot's marker to a channel's topic; its offset in each partition.

    A marker counts when a manifest names its offset: that of a writer which fails before its commit is passed over.
    Raises `Unavailable` when the broker has been away for longer than `patience_s`.
    """
    messages = [(partition, b"") for partition in range(partitions)]
    ends = send(kafka, topic, messages, marker_header(snapshot), patience_s=patience_s)
    return tuple(ends[partition] - 1 for partition in range(partitions))
