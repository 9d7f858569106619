"""Rejecting: a batch without the records that are to blame for its failure, which go to a table and to a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from ... import instants
from ...errors import Refused
from ...snapshot.bisect.poison import Ranges, TooMany
from ...store.versions import history
from ...store.versions.aside import REJECTED, rejected_of
from ..api.stage import Stage
from ..batch.job import Batch, Computed
from ..batch.schemas import Shape
from ..batch.task import Result
from ..kafka.rejects import send_rejects
from ..spark.places import Places as Whereabouts
from .again import Again, numbered
from .blame import Blame, blamed
from .culprits import Culprits
from .failed_task import failed_task, suspects
from .feed import KafkaFeed
from .given import GivenFeed, feeds_of
from .places import Places, Reading, place_of, places_of
from .records import Messages, Source
from .table import Written, error_of, row_of, table_of_rows
from .trials import Trials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEW_RECORDS = 40_000
"""So many of a topic are brought to the driver at once."""
_FEW_MESSAGES = 16
"""And so many messages of a repartition topic, each of which has thousands of rows."""


@dataclass(frozen=True)
class BatchRejecter:
    """Rejects records of one stage: see the Protocol `batch.job.Rejecter`."""

    spark: SparkSession
    stage: Stage
    shape: Shape
    where: Whereabouts
    topic: str = ""
    """Where rejected records are sent as well; empty for nowhere."""

    def rescue(self, batch: Batch, error: Exception) -> Computed:
        """See the Protocol."""
        blame = blamed(error)
        if blame is None:
            raise error
        places = places_of(batch.base.inputs, batch.after)
        # A state's function tells its keys, and no task of Spark's fails.
        task = failed_task(self.spark) if not blame.keys else None
        # A message of a channel has many records.
        near = suspects(task, places, each=not self.stage.channels) if task is not None else ()
        messages = Messages(self.where.kafka, self._sources(batch), places, self.where.patience_s)
        feeds = self._feeds(messages)
        again = Again(self.spark, self.stage, self.shape, places, feeds, messages.num_rows)

        def bring(readings: Sequence[Reading]) -> Again:
            given = {
                name: GivenFeed.of(
                    name,
                    (part for one in readings if one.input == name for part in feed.read(one, {})),
                    feed.schema,
                    feed.starts,
                )
                for name, feed in feeds.items()
            }
            return Again(self.spark, self.stage, self.shape, places, given, messages.num_rows)

        few = _FEW_MESSAGES if self.stage.channels else _FEW_RECORDS
        results, found = self._without_culprits(batch, Trials(again, bring, few), error, near=near)
        if not found:
            return Computed(results)
        letters = [messages.letter(*place_of(number), blame) for number, blame in sorted(found.items())]
        now_ms, version = instants.now_ms(), batch.base.version + 1
        rows = [row_of(*letter, version=version, now_ms=now_ms) for letter in letters]
        if self.topic:
            kafka, patience_s = self.where.kafka, self.where.patience_s
            send_rejects(kafka, self.topic, [letter for letter, *_ in letters], patience_s=patience_s)
        table = self._written(batch).put(batch.base, table_of_rows(rows), version, added=len(rows), waiting=len(rows))
        return Computed(results, {REJECTED: table})

    def retry(self, batch: Batch) -> Computed:
        """See the Protocol."""
        rows = self._written(batch).rows(batch.base)
        left = rows.filter(pc.is_null(rows["retried"]))
        places, feeds, ordered = feeds_of(self.stage, left, self._schemas, self._numbered)
        again = Again(self.spark, self.stage, self.shape, places, feeds, lambda _place: 1)
        results, found = self._without_culprits(batch, Trials(again, lambda _: again, 0), None, most=len(ordered))
        version = batch.base.version + 1
        for place, row in enumerate(ordered):
            blame = found.get(place << 20)
            row["attempts"] = int(str(row["attempts"])) + 1
            row |= {"retried": version} if blame is None else error_of(blame.kind, blame.message, blame.stack)
        taken = len(ordered) - len(found)
        table = self._written(batch).put(batch.base, table_of_rows(ordered), version, added=0, waiting=-taken)
        return Computed(results, {REJECTED: table})

    def _without_culprits(
        self,
        batch: Batch,
        trials: Trials,
        error: Exception | None,
        most: int | None = None,
        near: Sequence[Ranges] = (),
    ) -> tuple[tuple[Result, ...], Mapping[int, Blame]]:
        left = max(self.stage.max_rejected - rejected_of(batch.base).waiting, 0) if most is None else most
        culprits = Culprits(trials, batch, left, near)
        try:
            with closing(trials.far):
                return culprits.compute(error), culprits.found
        except TooMany:
            first = next(iter(culprits.found.values()), None) or trials.last
            said = f"; the first of them: {first.kind}: {first.message}" if first is not None else ""
            raise Refused(
                f"stage {self.stage.name!r} would have more than {self.stage.max_rejected:,} rejected records "
                f"waiting to be retried (max_rejected){said}",
                hint="the batch was dropped whole and nothing is lost: fix the program and run it again; "
                f"`slackwater rejected {batch.base.app}` shows those that wait, and --retry puts them through",
            ) from error

    def _written(self, batch: Batch) -> Written:
        return Written(batch.store, batch.cache, batch.base.app, batch.base.stage)

    def _sources(self, batch: Batch) -> dict[str, Source]:
        found = {}
        for name, at in batch.base.inputs.items():
            attempts = None
            if at.upstream:
                versions = range(at.version + 1, batch.after[name].version + 1)
                sent = (history.read(batch.store, batch.base.app, at.upstream, version) for version in versions)
                attempts = frozenset(
                    attempt for each in sent if name in each.outputs for attempt in each.outputs[name].attempts
                )
            found[name] = Source(at.topic, attempts)
        return found

    def _feeds(self, messages: Messages) -> dict[str, KafkaFeed]:
        def starts(name: str, places: Places) -> dict[int, tuple[int, int]]:
            return {each.partition: (each.first, places.start(each)) for each in places.stretches if each.input == name}

        return {
            name: KafkaFeed(
                messages.kafka,
                name,
                source.topic,
                self._numbered[name],
                starts(name, messages.places),
                source.attempts,
                messages.patience_s,
            )
            for name, source in ((name, messages.sources[name]) for name in self.stage.inputs)
        }

    @cached_property
    def _schemas(self) -> dict[str, pa.Schema]:
        return {name: to_arrow_schema(schema, timezone="UTC") for name, schema in self.shape.inputs.items()}

    @cached_property
    def _numbered(self) -> dict[str, pa.Schema]:
        return {name: to_arrow_schema(numbered(each), timezone="UTC") for name, each in self.shape.inputs.items()}
