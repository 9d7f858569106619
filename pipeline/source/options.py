"""What a source of Structured Streaming is told: its options, and what nobody else may see. Values only.

Options stand in Spark's plans, and so in its UI and its event log. So a source gets the client's properties, which have
passwords, beside them (`data_source.open_stream`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from .worker import ERROR_MARK, ErrorMark

if TYPE_CHECKING:
    from ...store.objects.s3.settings import S3Settings


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source is told, as JSON in its one option. No secrets."""

    input: str
    """The input's declared name."""
    topic: str
    """The Kafka topic."""
    topic_id: str = ""
    """Of a user's topic, as `Input.topic_id`."""
    upstream: str = ""
    """The stage that writes it, for a repartition topic; empty for a user's topic."""
    patience_s: float = 120
    """How long the broker or the store may be away."""
    max_records: int | None = None
    """At most so many records, or rows, a batch; None for no bound."""
    trigger_ms: int = 0
    """Shortest time between two batches."""
    app: str = ""
    stage: str = ""
    """The one that reads."""
    store: str = ""
    """Root of the store in which to look for the upstream stage's versions, and for the app's archives."""
    spool: str = ""
    """A folder of the machine of the tasks in which what is read is kept for the archive; empty for none."""
    counts: str = ""
    """A folder in which requests to the store are counted; empty for none."""
    told: str = ""
    """Where the runner tells what it wants (`wake.PlannerFiles`); empty where nobody does."""
    wakes: bool = False
    """Whether the runner wakes the stage by this input."""
    asks: bool = False
    """Whether to look for the snapshots that are asked for; else markers bring them."""
    handled: tuple[str, ...] = ()
    """Ids of snapshots for which a batch of this topic has ended already."""
    until: tuple[int, ...] | None = None
    """Where a user's topic ends for this reader, by partition; None for its end in Kafka."""


@dataclass(frozen=True, slots=True)
class Private:
    """What a source is given that nobody else may see."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties."""
    s3: S3Settings | None = None
    """How S3 is talked to; None for what the environment says."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the driver by which it finds S3, for planning, which is done on its machine."""
    error_mark: ErrorMark = ERROR_MARK
    """Of the errors of reading, in tasks."""
