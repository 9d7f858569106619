"""The threads that publish the sinks of a runner's stages: beside the batches, and waited for by none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from ...errors import Gone, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Manifest
from ...store.versions.published import Place
from ..api.sink import FunctionSink, Sink
from ..api.stage import Stage
from ..kafka.channels import group_of
from ..kafka.messages import of_attempts, rows_of
from ..kafka.patience import Patience
from ..kafka.protocol import Broken, Kafka, Overtaken, TransactionSettings
from ..listener import Listener
from .core import Backlog, Publisher, Target
from .targets import Book, ToFunction, ToTopic

_log = logging.getLogger("slackwater")

_LOOK_S = 1.0
_SOON_S = 0.01
_AGAIN_S = (0.2, 5.0)
"""From the first to the longest pause before a target is opened again."""
_NOTE_S = 5.0
_DECIDED_S = 0.1
_PURGE_S = 60.0
_END_S = 5.0


class SinkThread(threading.Thread):
    """Publishes what is committed of one sink, from its start until it is closed.

    `accept_loss`: go on without rows that Kafka has lost. Kafka, or a function, may fail for `patience_s`.
    """

    def __init__(self, kafka: Kafka, book: Book, target: Target, *, accept_loss: bool, patience_s: float) -> None:
        claimed = book.claimed
        self.stage, self.sink = claimed.stage, book.name
        super().__init__(name=f"sink-{self.stage}-{self.sink}", daemon=True)
        self.error: BaseException | None = None
        """Why nothing is published any more."""
        self._kafka, self._book, self._destination = kafka, book, target
        self._accept_loss, self._patience_s = accept_loss, patience_s
        self._purged = 0
        self._note_due = self._purge_due = 0.0
        self._hurry = False
        self._backlog = Backlog(self.sink, lambda version: history.after(book.store, claimed.app, self.stage, version))
        self._publisher = Publisher(book.title, self._backlog, target, self._read)
        self._opened = self._over = self._withdrawn = False
        self._head = claimed
        self._news = threading.Condition()
        self._backlog.offer(claimed)

    def offer(self, head: Manifest) -> None:
        """A version of the stage was committed."""
        with self._news:
            self._head = head
            self._backlog.offer(head)
            self._news.notify()

    @property
    def since(self) -> int:
        """The version that began the sink which it publishes."""
        return self._book.sink.since

    @property
    def place(self) -> Place | None:
        """How far it is; None before it knows."""
        return self._publisher.place if self._opened else None

    @property
    def done(self) -> bool:
        """Whether all that is committed is published, or never will be."""
        place = self.place
        return self._withdrawn or (place is not None and place.rows >= self._head.sinks[self.sink].sent)

    def hurry(self, *, hurried: bool) -> None:
        """Tell the store at once what is published, while somebody waits for that; else now and then."""
        with self._news:
            self._hurry = hurried
            self._news.notify()

    def stop(self) -> None:
        """End after what is under way."""
        with self._news:
            self._over = True
            self._news.notify()

    def run(self) -> None:
        """Publish until it is stopped, or something else than a pause is needed."""
        patience = Patience(f"what {self._book.title} publishes to", self._patience_s)
        pause_s = _AGAIN_S[0]
        try:
            self._await_decision(patience)
            while not self._over:
                try:
                    self._opened = False
                    self._publisher.open()
                    self._opened = True
                    while not self._over:
                        more = self._step()
                        patience.answered()
                        self._keep_up()
                        if not more:
                            self._wait(_LOOK_S)
                except Overtaken:
                    # Also where the broker gave a transaction up that was open for too long: then the stage is ours.
                    self._book.check_epoch()
                    _log.warning("%s: its transaction was given up, and is made again", self._book.title)
                except Broken as error:
                    if error.error is not None:
                        _log.warning("%s", error.error.message)
                    try:
                        patience.waited(str(error))
                    except Unavailable as away:
                        raise error.error or away from error
                    self._wait(pause_s)
                    # To open it again fences whoever has it: that must not be the stage's next runner.
                    self._book.check_epoch()
                    pause_s = min(2 * pause_s, _AGAIN_S[1])
                else:
                    pause_s = _AGAIN_S[0]
            self._note_now()
        except BaseException as error:
            self.error = error
        finally:
            self._destination.close()

    def _await_decision(self, patience: Patience) -> None:
        """Of a sink that a promotion gave, publish nothing before that is decided, and nothing if it is withdrawn."""
        while not self._over:
            try:
                decided = self._book.decided()
            except Unavailable as error:
                patience.waited(error.message)
                decided = None
            if decided:
                return
            self._withdrawn = self._over = decided is False
            with self._news:
                self._news.wait(_DECIDED_S)

    def _step(self) -> bool:
        try:
            return self._publisher.step()
        except Gone as error:
            # Who took the stage over publishes them, and has them deleted: then nothing is lost, nor ours to pass over.
            self._book.check_epoch()
            if not self._accept_loss:
                raise Gone(
                    f"{self._book.title} cannot go on: {error.message}, and were not published",
                    hint="they were committed, and only Kafka had them; go on without them by --accept-loss",
                ) from error
        # What was begun has no effect.
        self._publisher.open()
        lost = self._publisher.pass_over()
        _log.warning("%s goes on without %s rows that are gone from Kafka", self._book.title, f"{lost:,}")
        return True

    def _wait(self, seconds: float) -> None:
        with self._news:
            if not self._over:
                # What was committed since the last look told nobody.
                self._news.wait(_SOON_S if self._opened and not self.done else seconds)

    def _read(self, start: int, end: int, attempts: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
        for messages in self._kafka.read(self._book.sink.topic, 0, start, end, patience_s=self._patience_s):
            for message in of_attempts(messages, attempts):
                yield message.offset() + 1, rows_of(message)

    def _keep_up(self) -> None:
        """Note the place, and have Kafka delete what is published, now and then."""
        now = time.monotonic()
        if now >= self._note_due or self._hurry:
            self._note_due = now + _NOTE_S
            self._note_now()
        if now >= self._purge_due:
            self._purge_due = now + _PURGE_S
            noted = self._book.noted
            if noted is not None and noted.offset > self._purged:
                self._kafka.delete_records(self._book.sink.topic, noted.offset)
                self._purged = noted.offset

    def _note_now(self) -> None:
        place = self.place
        if place is not None and place != self._book.noted:
            # What must be noted the target notes itself; the next one of these is as good.
            with suppress(Unavailable):
                self._book.note(place)


class Publishers(Listener):
    """The publishers of the claimed stages' sinks. `info` may be None where no stage has any; claims are by stage.

    `accept_loss`: go on without what nobody knows to be published or not, and without what Kafka has lost. Kafka, or a
    function, may fail for `patience_s`.
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
        def thread(sink: Sink, head: Manifest) -> SinkThread:
            book = Book(store, head, sink.name)
            target: Target
            if isinstance(sink, FunctionSink):
                target = ToFunction(sink.function, book)
            else:
                settings = TransactionSettings(
                    transactional_id=f"slackwater-{head.app}-{head.stage}-{sink.name}",
                    group=group_of(head.app, head.stage),
                    source=book.sink.topic,
                    topic=(apps.publishes(store, info, head.promotion) or {}).get(sink.name, sink.name),
                    patience_s=patience_s,
                )
                app_id = info.created_ms if info else 0
                target = ToTopic(kafka.transactions(settings), book, app_id, accept_loss)
            return SinkThread(kafka, book, target, accept_loss=accept_loss, patience_s=patience_s)

        self._make = thread
        self._sinks = [(stage.name, sink) for stage in stages for sink in stage.sinks]
        self._threads: tuple[SinkThread, ...] = ()
        self._hurried = False
        self.follow(claimed)

    def start(self) -> None:
        """Begin to publish."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def follow(self, heads: Mapping[str, Manifest]) -> bool:
        """Have a thread for each sink of these newest versions: one that began anew gets another. Whether any is new.

        The new ones are to be started.
        """
        mine = {(thread.stage, thread.sink): thread for thread in self._threads}
        for stage, sink in self._sinks:
            head, had = heads[stage], mine.get((stage, sink.name))
            now = head.sinks.get(sink.name)
            if had is not None and (now is None or now.since != had.since):
                mine.pop((stage, sink.name)).stop()
            if now is not None and (had is None or now.since != had.since):
                mine[stage, sink.name] = self._make(sink, head)
        is_news = {*mine.values()} != {*self._threads}
        self._threads = tuple(mine.values())
        return is_news

    def hurry(self, *, hurried: bool) -> None:
        """Tell the store at once what is published, or now and then."""
        if hurried != self._hurried:
            self._hurried = hurried
            for thread in self._threads:
                thread.hurry(hurried=hurried)

    def move(self, head: Manifest, _tip: Manifest | None = None) -> None:
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
        """End all, after what is under way; what takes long is left, and published by the next runner."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_END_S)
