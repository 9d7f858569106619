"""The thread that publishes one sink of one stage: beside the batches, and waited for by none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa

from ...errors import Gone, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.manifest import Manifest
from ...store.versions.published import Place
from ..kafka.messages import header_of, rows_of
from ..kafka.patience import Patience
from ..kafka.protocol import Kafka
from .core import Backlog, Broken, Overtaken, Publisher, Target

_log = logging.getLogger("slackwater")

_LOOK_S = 1.0
_SOON_S = 0.01
_AGAIN_S = (0.2, 5.0)
"""From the first to the longest pause before a target is opened again."""
_NOTE_S = 5.0
_PURGE_S = 60.0
_END_S = 5.0


Make = Callable[[Callable[[], Place | None], Callable[[Place], None]], Target]
"""Makes a target, from what says the store's place, and what notes one."""


class SinkThread:
    """Publishes what is committed of one sink, from its start until it is closed.

    Args:
        store: Of the app.
        kafka: Where the internal topic is.
        claimed: The claim's version, which has the sink.
        name: The sink's.
        make: Makes the target.
        check_epoch: Raises `Fenced` where somebody took the stage over.
        accept_loss: Go on without rows that Kafka has lost.
        patience_s: How long Kafka, or a function, may fail.
    """

    def __init__(
        self,
        store: ObjectStore,
        kafka: Kafka,
        claimed: Manifest,
        name: str,
        make: Make,
        *,
        check_epoch: Callable[[], None],
        accept_loss: bool,
        patience_s: float,
    ) -> None:
        self.name = f"sink {name!r} of stage {claimed.stage!r}"
        self.stage, self.sink = claimed.stage, name
        self.error: BaseException | None = None
        """Why nothing is published any more."""
        self._store, self._kafka, self._claimed = store, kafka, claimed
        self._topic = claimed.sinks[name].topic
        self._check_epoch = check_epoch
        self._accept_loss, self._patience_s = accept_loss, patience_s
        self._noted: Place | None = None
        self._purged = 0
        self._note_due = self._purge_due = 0.0
        self._target = make(self._stored, self._note)
        self._backlog = Backlog(name, lambda version: history.after(store, claimed.app, claimed.stage, version))
        self._publisher = Publisher(self.name, self._backlog, self._target, self._read)
        self._opened = self._over = False
        self._head = claimed
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._go_on, name=f"sink-{claimed.stage}-{name}", daemon=True)
        self._backlog.offer(claimed)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def offer(self, head: Manifest) -> None:
        """A version of the stage was committed."""
        with self._news:
            self._head = head
            self._backlog.offer(head)
            self._news.notify()

    @property
    def place(self) -> Place | None:
        """How far it is; None before it knows."""
        return self._publisher.place if self._opened else None

    @property
    def done(self) -> bool:
        """Whether all that is committed is published."""
        place = self.place
        return place is not None and place.rows >= self._head.sinks[self.sink].sent

    def stop(self) -> None:
        """End after what is under way."""
        with self._news:
            self._over = True
            self._news.notify()

    def close(self) -> None:
        """Wait for the end; what takes long is left, and published by the next runner."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _go_on(self) -> None:
        patience = Patience(f"what {self.name} publishes to", self._patience_s)
        pause_s = _AGAIN_S[0]
        try:
            while not self._over:
                try:
                    self._opened = False
                    self._publisher.open()
                    self._opened = True
                    self._publish(patience)
                except Overtaken:
                    # Also where the broker gave a transaction up that was open for too long: then the stage is ours.
                    self._check_epoch()
                    _log.warning("%s: its transaction was given up, and is made again", self.name)
                except Broken as error:
                    if error.error is not None:
                        _log.warning("%s", error.error.message)
                    self._bear(patience, error)
                    self._wait(pause_s)
                    # To open it again fences whoever has it: that must not be the stage's next runner.
                    self._check_epoch()
                    pause_s = min(2 * pause_s, _AGAIN_S[1])
                else:
                    pause_s = _AGAIN_S[0]
            self._note_now()
        except BaseException as error:
            self.error = error
        finally:
            self._target.close()

    def _publish(self, patience: Patience) -> None:
        while not self._over:
            more = self._step()
            patience.answered()
            self._keep_up()
            if not more:
                self._wait(_LOOK_S)

    def _step(self) -> bool:
        try:
            return self._publisher.step()
        except Gone as error:
            # Who took the stage over publishes them, and has them deleted: then nothing is lost, nor ours to pass over.
            self._check_epoch()
            if not self._accept_loss:
                raise Gone(
                    f"{self.name} cannot go on: {error.message}, and were not published",
                    hint="they were committed, and only Kafka had them; go on without them by --accept-loss",
                ) from error
        # What was begun has no effect.
        self._publisher.open()
        lost = self._publisher.pass_over()
        _log.warning("%s goes on without %s rows that are gone from Kafka", self.name, f"{lost:,}")
        return True

    def _bear(self, patience: Patience, error: Broken) -> None:
        try:
            patience.waited(str(error))
        except Unavailable:
            if error.error is not None:
                raise error.error from error
            raise

    def _wait(self, seconds: float) -> None:
        with self._news:
            if not self._over:
                # What was committed since the last look told nobody.
                self._news.wait(_SOON_S if self._opened and not self.done else seconds)

    def _read(self, start: int, end: int, attempts: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
        chunks = self._kafka.read(self._topic, 0, start, end, patience_s=self._patience_s)
        for messages in chunks:
            for message in messages:
                if header_of(message) in attempts:
                    yield message.offset() + 1, rows_of(message)

    def _keep_up(self) -> None:
        """Note the place, and have Kafka delete what is published, now and then."""
        now = time.monotonic()
        if now >= self._note_due:
            self._note_due = now + _NOTE_S
            self._note_now()
        if now >= self._purge_due:
            self._purge_due = now + _PURGE_S
            if self._noted is not None and self._noted.offset > self._purged:
                self._kafka.delete_records(self._topic, self._noted.offset)
                self._purged = self._noted.offset

    def _note_now(self) -> None:
        place = self.place
        if place is not None and place != self._noted:
            # What must be noted the target notes itself; the next one of these is as good.
            with suppress(Unavailable):
                self._note(place)

    def _stored(self) -> Place | None:
        self._noted = published.newest(self._store, self._claimed, self.sink)
        return self._noted

    def _note(self, place: Place) -> None:
        published.note(self._store, self._claimed, self.sink, place, self._noted)
        self._noted = place
