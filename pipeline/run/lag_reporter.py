"""Reports how far every stage of a running app is behind, and writes the runner's heartbeats; beside the batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ... import instants
from ...errors import Corruption, Refused, Unavailable
from ...moments.status import lag
from ...moments.status.lag import StageLag, input_lag, sink_lags
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.published import Place
from ..batch.stage_runner import StageRunner
from ..kafka.open import EndOffsets
from ..kafka.protocol import Kafka
from .news import News

_REPORT_S = 5.0
_OTHERS_S = 60.0
_KAFKA_S = 2.0
_END_S = 2.0


class LagReporter:
    """Works every few seconds, on a thread of its own: no batch waits for it, and nothing depends on what it finds.

    Its `store` is of little patience. `writer` is unique to this run, `by` is host:pid; `places` says how far the
    sinks of a stage of this run are.
    """

    def __init__(
        self,
        store: ObjectStore,
        kafka: Kafka,
        app: str,
        *,
        writer: str,
        by: str,
        runners: Sequence[StageRunner],
        news: News,
        places: Callable[[str], Mapping[str, Place | None]],
    ) -> None:
        self._store = store
        self._kafka = kafka
        self._app = app
        self._runners = runners
        self._news = news
        self._places = places
        self._beat = lag.Beat(writer, by, {runner.stage.name: runner.head.epoch for runner in runners})
        self._others: dict[str, Manifest] = {}
        self._alive: tuple[lag.Beat, ...] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="lag-reporter", daemon=True)

    def start(self) -> None:
        """Begin with the first report."""
        self._thread.start()

    def close(self) -> None:
        """Write the last heartbeat; what takes long is left."""
        self._over.set()
        self._thread.join(_END_S)

    def _go_on(self) -> None:
        beat_due = others_due = 0.0
        swept = False
        while not self._over.is_set():
            if time.monotonic() >= beat_due:
                beat_due = time.monotonic() + lag.BEAT_S
                with suppress(Unavailable, Refused):
                    lag.RUNNERS.put(self._store, self._beat, self._app)
                    if not swept:
                        lag.sweep(self._store, self._app, self._beat.writer)
                    swept = True
            if time.monotonic() >= others_due:
                others_due = time.monotonic() + _OTHERS_S
                self._refresh_others()
            self._news.lags(self._lags())
            self._over.wait(_REPORT_S)
        with suppress(Unavailable, Refused):
            lag.RUNNERS.remove(self._store, self._beat.writer, self._app)

    def _refresh_others(self) -> None:
        """What stages are that run elsewhere, or nowhere."""
        try:
            self._alive = lag.beats(self._store, self._app, instants.now_ms())
            names = set(history.list_stages(self._store, self._app)) - self._beat.stages.keys()
            found = {}
            for stage in sorted(names):
                known = self._others.get(stage)
                head = history.head(self._store, self._app, stage, known=known.version if known else 0)
                if head is not None and not head.retired:
                    found[stage] = head
            self._others = found
        except (Unavailable, Corruption, Refused):
            # Whoever needs them says it; here, nobody knows.
            self._alive = None

    def _lags(self) -> tuple[StageLag, ...]:
        own = {runner.stage.name: runner.head for runner in self._runners}
        heads = self._others | own
        ends_of = EndOffsets(self._kafka, timeout_s=_KAFKA_S)
        return tuple(
            StageLag(
                self._app,
                stage,
                tuple(input_lag(name, head, heads, ends_of) for name in head.inputs),
                True if stage in own else self._runs(head),
                sink_lags(head, self._places(stage)) if stage in own else (),
            )
            for stage, head in sorted(heads.items())
        )

    def _runs(self, head: Manifest) -> bool | None:
        return None if self._alive is None else bool(lag.runner_of(head, self._alive))
