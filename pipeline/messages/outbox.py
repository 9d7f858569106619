"""Records that enter a sink's internal topic outside of a batch's tasks: records of a retry or of a repair."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ...common import runtime
from ...snapshot.under_way.runners import Outdated
from ...state.next_version import PartitionWrite, TaskReport, sinks_after
from ...store.versions.manifest import Manifest, Sink
from ..kafka.messages import send_messages, split_into_messages
from ..kafka.protocol import Kafka


def send_records(kafka: Kafka, base: Manifest, sink: str, records: pa.Table, *, patience_s: float) -> TaskReport:
    """Send encoded records to a sink's internal topic, for the version after `base`. Returns the task report.

    The records count once a version names the report's attempt. Raises `Refused`, `SendFailed` or `Unavailable`.
    """
    # Globally unique, like a task's attempt.
    attempt = f"{base.writer}.{base.version + 1}.{runtime.ulid()}"
    messages = split_into_messages(records, np.zeros(records.num_rows, np.int32))
    ends = send_messages(kafka, base.sinks[sink].topic, messages, attempt.encode(), patience_s=patience_s)
    return TaskReport(attempt, 0, sent={sink: {0: PartitionWrite(records.num_rows, ends[0])}})


def send_for_repair(
    kafka: Kafka, base: Manifest, records: Mapping[str, pa.Table], *, patience_s: float
) -> dict[str, Sink]:
    """Send a repair's records, by sink, for the version after `base`. Returns the sinks of that version.

    Raises `Outdated` if the stage no longer has one of the sinks, and the errors of `send_records`.
    """
    if missing := sorted(records.keys() - base.sinks.keys()):
        raise Outdated(f"{base.stage}@v{base.version} has no sink {missing[0]!r} any more", hint="repeat the command")
    reports = [send_records(kafka, base, name, rows, patience_s=patience_s) for name, rows in records.items()]
    return sinks_after(base.sinks, reports)
