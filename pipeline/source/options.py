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
    """What a source is told, as JSON in its one option. No secrets.

    Attributes:
        input: The input's declared name.
        topic: The Kafka topic.
        upstream: The stage that writes it, for a repartition topic; empty for a user's topic.
        patience_s: How long the broker or the store may be away.
        max_records: At most so many records, or rows, a batch; None for no bound.
        trigger_ms: Shortest time between two batches.
        hold: A file; while it is there, no batch starts but for a snapshot. Empty for none.
        app: The app's name.
        store: Root of the store in which to look for the upstream stage's versions; empty for a user's topic.
        counts: A folder in which requests to the store are counted; empty for none.
        requests: A file with the ids of the snapshots that are asked for (`wake.Asked`); empty if markers bring them.
        sender: A file with the newest version of the upstream stage (`wake.Committed`), where that runs here as well.
        handled: Ids of snapshots for which a batch of this topic has ended already.
        until: Where a user's topic ends for this reader, by partition; None for its end in Kafka.
        wake: A file by which the runner has a batch start (`wake`); empty for none.
        needed: A file with the columns of a user's topic that the stage needs (`wake.Needed`); empty for all.
    """

    input: str
    topic: str
    upstream: str = ""
    patience_s: float = 120
    max_records: int | None = None
    trigger_ms: int = 0
    hold: str = ""
    app: str = ""
    store: str = ""
    counts: str = ""
    requests: str = ""
    sender: str = ""
    handled: tuple[str, ...] = ()
    until: tuple[int, ...] | None = None
    wake: str = ""
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Private:
    """What a source is given that nobody else may see.

    Attributes:
        kafka: Client properties.
        s3: How S3 is talked to; None for what the environment says.
        environ: Variables of the driver by which it finds S3, for planning, which is done on its machine.
        error_mark: Of the errors of reading, in tasks.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: S3Settings | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    error_mark: ErrorMark = ERROR_MARK
