"""Rejected records in an app's history, without Spark and Kafka."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import Manifest
from slackwater.store.versions.side_tables import REJECTED

from tests.support.histories import FlightsApp


def letter(offset: int, error: str = "ValueError") -> DeadLetter:
    """Return a rejected record."""
    headers = (("from", b"test"), ("empty", None))
    return DeadLetter("flights", 0, offset, b"N001", b"no json", headers, error, f"bad: {offset}", "Traceback: here")


def reject(app: FlightsApp, stage: str, offsets: Sequence[int], cache: Path) -> Manifest:
    """Commit a batch of the stage that only rejected the records at these offsets."""
    head, now_ms = app.heads[stage], app.clock.tick(stage)
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=now_ms)
    name = next(iter(head.inputs))
    letters = [dataclasses.replace(letter(each), input=name, time_ms=now_ms) for each in offsets]
    rows = [rejected_row(each, version=draft.version, now_ms=now_ms) for each in letters]
    written = RejectedTable(app.store, SstCache(cache, 1 << 30), app.name, stage)
    table = written.upsert(head, rows, draft.version, added=len(rows), waiting=len(rows))
    return app.commit(replace(draft, side_tables={REJECTED: table}))


def mark_retried(app: FlightsApp, stage: str, offsets: Sequence[int], cache: Path) -> Manifest:
    """Commit a batch that has accepted these rejected records in a retry."""
    head = app.heads[stage]
    now_ms = app.clock.tick(stage)
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=now_ms)
    written = RejectedTable(app.store, SstCache(cache, 1 << 30), app.name, stage)
    rows = [each for each in written.read_rows(head).to_pylist() if each["offset"] in offsets]
    for row in rows:
        row["retried"], row["attempts"] = draft.version, row["attempts"] + 1
    table = written.upsert(head, rows, draft.version, added=0, waiting=-len(rows))
    return app.commit(replace(draft, side_tables={REJECTED: table}))
