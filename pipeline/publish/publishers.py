"""All publishers of a runner, and sinks that are functions of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from ...errors import SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import commit, history
from ...store.versions.manifest import AppInfo, Manifest
from ...store.versions.published import Place
from ..api.sink import FunctionSink, Sink, VersionFunction
from ..api.stage import Stage
from ..kafka.channels import group_of
from ..kafka.protocol import Kafka, TransactionSettings
from ..spark.user_errors import as_user_error
from .core import Broken, Target
from .publisher import Make, SinkThread
from .to_topic import ToTopic


class Publishers:
    """The publishers of the claimed stages' sinks; none where there are none.

    Args:
        store: Of the app.
        info: Who the app is; None where no stage has sinks.
        kafka: Kafka, opened.
        stages: As declared.
        claimed: The claims, by stage.
        accept_loss: Go on without what nobody knows to be published or not, and without what Kafka has lost.
        patience_s: How long Kafka, or a function, may fail.
    """

    def __init__(
        self,
        store: ObjectStore,
        info: AppInfo | None,
        kafka: Kafka,
        stages: Sequence[Stage],
        claimed: Mapping[str, Manifest],
        *,
        accept_loss: bool,
        patience_s: float,
    ) -> None:
        self._info, self._kafka, self._accept_loss, self._patience_s = info, kafka, accept_loss, patience_s
        self._threads = tuple(
            SinkThread(
                store,
                kafka,
                claimed[stage.name],
                sink.name,
                self._maker(store, claimed[stage.name], sink),
                check_epoch=partial(_check_epoch, store, claimed[stage.name]),
                accept_loss=accept_loss,
                patience_s=patience_s,
            )
            for stage in stages
            for sink in stage.sinks
            if sink.name in claimed[stage.name].sinks
        )

    def start(self) -> None:
        """Begin to publish."""
        for thread in self._threads:
            thread.start()

    def move(self, head: Manifest) -> None:
        """A version was committed."""
        for thread in self._threads:
            if thread.stage == head.stage:
                thread.offer(head)

    def check(self) -> None:
        """Raise what ended one of them, if anything did: a `SlackwaterError`, as a rule."""
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    @property
    def done(self) -> bool:
        """Whether all that is committed is published."""
        return all(thread.done for thread in self._threads)

    def places(self, stage: str) -> dict[str, Place | None]:
        """How far the sinks of a stage are."""
        return {thread.sink: thread.place for thread in self._threads if thread.stage == stage}

    def close(self) -> None:
        """End all, after what is under way."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.close()

    def _maker(self, store: ObjectStore, claimed: Manifest, sink: Sink) -> Make:
        app, stage, begun = claimed.app, claimed.stage, claimed.sinks[sink.name]
        # Until all is published, no collection takes the version that began the sink; after that, nobody asks.
        first = claimed if begun.since == claimed.version else None

        def since() -> Place:
            at = first or history.read(store, app, stage, begun.since)
            return Place(begun.since, at.sinks[sink.name].end, 0)

        def make(stored: Callable[[], Place | None], note: Callable[[Place], None]) -> Target:
            name = f"sink {sink.name!r} of stage {stage!r}"
            if isinstance(sink, FunctionSink):
                return ToFunction(name, sink.function, app=app, stage=stage, since=since, stored=stored, note=note)
            settings = TransactionSettings(
                transactional_id=f"slackwater-{app}-{stage}-{sink.name}",
                group=group_of(app, stage),
                source=begun.topic,
                topic=(publishes(self._info) or {}).get(sink.name, sink.name),
                patience_s=self._patience_s,
            )
            return ToTopic(
                name,
                self._kafka.transactions(settings),
                app_id=self._info.created_ms if self._info is not None else 0,
                first=begun.since,
                since=since,
                stored=stored,
                note=note,
                sent=begun.sent,
                given_up=Place(claimed.version, begun.end, begun.sent) if self._accept_loss else None,
            )

        return make


def _check_epoch(store: ObjectStore, claimed: Manifest) -> None:
    """Raise `Fenced` where somebody took the stage over."""
    head = history.head(store, claimed.app, claimed.stage, known=claimed.version) or claimed
    commit.check_epoch(head, claimed.epoch)


def publishes(info: AppInfo | None) -> Mapping[str, str] | None:
    """What a clone was told to publish, by sink; None for an app that is no clone, which publishes all."""
    return info.origin.sinks if info is not None and info.origin is not None else None


class ToFunction:
    """A target for `core.Publisher`. What is done twice, after a crash, has the same version both times.

    Args:
        name: The sink's, as messages name it.
        function: The user's.
        app, stage: What it is told.
        since: Says where the sink began.
        stored: The place that the store has, None before the first start.
        note: Puts a place into the store.
    """

    max_rows = 0

    def __init__(
        self,
        name: str,
        function: VersionFunction,
        *,
        app: str,
        stage: str,
        since: Callable[[], Place],
        stored: Callable[[], Place | None],
        note: Callable[[Place], None],
    ) -> None:
        self._name, self._function, self._app, self._stage = name, function, app, stage
        self._since = since
        self._stored = stored
        self._note = note
        self._rows: list[pa.Table] = []

    def open(self) -> Place:
        """See the Protocol. Raises `Unavailable`."""
        self._rows.clear()
        place = self._stored()
        if place is None:
            self._note(place := self._since())
        return place

    def begin(self, version: int) -> None:
        """See the Protocol."""
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        """See the Protocol."""
        self._rows.append(rows)

    def commit(self, place: Place) -> None:
        """See the Protocol. Raises `Broken` for whatever the function raises, and `Unavailable`."""
        try:
            if self._rows:  # else they are given up
                with as_user_error(f"{self._name}, at v{place.version}", self._function):
                    # Tasks of one version have the same columns.
                    self._function(self._app, self._stage, place.version, pa.concat_tables(self._rows))
        except SlackwaterError as error:
            # What it writes to may be away for a moment.
            raise Broken(error.message, error) from error
        self._note(place)

    def close(self) -> None:
        """Nothing is open."""
