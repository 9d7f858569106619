"""Threads that publish the sinks of a runner's stages, in the background."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from ...common import runtime
from ...errors import Gone, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Manifest
from ...store.versions.published import PublishedPosition
from ..api.sink import FunctionSink, Sink
from ..api.stage import Stage
from ..api.table_sink import TableSink
from ..kafka.channels import consumer_group
from ..kafka.messages import filter_by_attempts, rows_of
from ..kafka.protocol import Kafka, Patience, ProducerFenced, TransactionFailed, TransactionSettings
from ..listener import Listener
from .core import Backlog, Publisher, Target
from .tables.open import open_table
from .tables.target import TableTarget
from .targets import FunctionTarget, SinkProgress, TopicTarget

_log = logging.getLogger("slackwater")

_POLL_S = 1.0
_SHORT_POLL_S = 0.01
_REOPEN_PAUSES_S = (0.2, 5.0)
_STORE_EVERY_S = 5.0
_DECISION_POLL_S = 0.1
_PURGE_EVERY_S = 60.0
_JOIN_TIMEOUT_S = 5.0


class SinkThread:
    """Thread that publishes the committed rows of one sink, from its start until `stop`.

    `accept_loss`: True to continue without rows that Kafka has lost. `patience_s`: seconds after which the thread gives
    up if Kafka or the sink's function keeps failing.
    """

    def __init__(
        self, kafka: Kafka, book: SinkProgress, target: Target, *, accept_loss: bool, patience_s: float
    ) -> None:
        claimed = book.claimed
        self.stage, self.sink = claimed.stage, book.name
        self._thread = runtime.thread(self._run, name=f"sink-{self.stage}-{self.sink}")
        self._is_started = False
        self.error: BaseException | None = None
        """Error that ended publishing; None while it runs."""
        self._kafka, self._progress, self._destination = kafka, book, target
        self._accept_loss, self._patience_s = accept_loss, patience_s
        self._purged = 0
        self._store_due = self._purge_due = 0.0
        self._store_promptly = False
        self._backlog = Backlog(
            self.sink, lambda version: history.iter_after(book.store, claimed.app, self.stage, version)
        )
        self._publisher = Publisher(book.title, self._backlog, target, self._read)
        self._opened = self._stop_requested = self._withdrawn = False
        self._head = claimed
        self._changed = runtime.condition()
        self._backlog.offer(claimed)

    def offer(self, head: Manifest) -> None:
        with self._changed:
            self._head = head
            self._backlog.offer(head)
            self._changed.notify()

    @property
    def first_version(self) -> int:
        return self._progress.sink.since

    @property
    def position(self) -> PublishedPosition | None:
        return self._publisher.position if self._opened else None

    @property
    def is_done(self) -> bool:
        """Return True if no rows are left to publish: all rows are published, or the sink's promotion was withdrawn."""
        place = self.position
        return self._withdrawn or (place is not None and place.rows >= self._head.sinks[self.sink].sent)

    def set_prompt_storing(self, *, enabled: bool) -> None:
        """Store the published position after each step if `enabled`; otherwise only every few seconds."""
        with self._changed:
            self._store_promptly = enabled
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stop_requested = True
            self._changed.notify()

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        if self._is_started:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        """Publish until stopped, or until an error that a retry cannot fix."""
        patience = Patience(f"what {self._progress.title} publishes to", self._patience_s)
        pause_s = _REOPEN_PAUSES_S[0]
        try:
            self._await_decision(patience)
            while not self._stop_requested:
                try:
                    self._opened = False
                    self._publisher.open()
                    self._opened = True
                    while not self._stop_requested:
                        more = self._publish_next()
                        patience.record_answer()
                        self._store_and_purge()
                        if not more:
                            self._wait(_POLL_S)
                except ProducerFenced:
                    # The broker also aborts transactions that are open for too long. In that case the stage still
                    # belongs to this runner.
                    self._progress.check_epoch()
                    _log.warning("%s: its transaction was aborted, and is repeated", self._progress.title)
                except TransactionFailed as error:
                    if error.error is not None:
                        _log.warning("%s", error.error.message)
                    try:
                        patience.record_silence(str(error))
                    except Unavailable as away:
                        raise error.error or away from error
                    self._wait(pause_s)
                    # Opening the target again fences the target's owner. The owner must not be the stage's next runner.
                    self._progress.check_epoch()
                    pause_s = min(2 * pause_s, _REOPEN_PAUSES_S[1])
                else:
                    pause_s = _REOPEN_PAUSES_S[0]
            self._store_position()
        except BaseException as error:
            self.error = error
        finally:
            self._destination.close()

    def _await_decision(self, patience: Patience) -> None:
        while not self._stop_requested:
            try:
                decided = self._progress.may_publish()
            except Unavailable as error:
                patience.record_silence(error.message)
                decided = None
            if decided:
                return
            self._withdrawn = self._stop_requested = decided is False
            with self._changed:
                self._changed.wait(_DECISION_POLL_S)

    def _publish_next(self) -> bool:
        try:
            return self._publisher.publish_next()
        except Gone as error:
            # A newer runner of the stage may have published and deleted these records: then nothing is lost.
            self._progress.check_epoch()
            if not self._accept_loss:
                raise Gone(
                    f"{self._progress.title} cannot continue: {error.message}, and were not published",
                    hint="they were committed, but only Kafka had them; to continue without them: --accept-loss",
                ) from error
        # Abort the transaction that was begun.
        self._publisher.open()
        lost = self._publisher.skip_version()
        _log.warning("%s continues without %s rows that are gone from Kafka", self._progress.title, f"{lost:,}")
        return True

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._stop_requested:
                # Versions committed since the last check may have been offered before this wait.
                self._changed.wait(_SHORT_POLL_S if self._opened and not self.is_done else seconds)

    def _read(self, start: int, end: int, attempts: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
        for messages in self._kafka.read(self._progress.sink.topic, 0, start, end, patience_s=self._patience_s):
            for message in filter_by_attempts(messages, attempts):
                yield message.offset() + 1, rows_of(message)

    def _store_and_purge(self) -> None:
        now = runtime.monotonic()
        if now >= self._store_due or self._store_promptly:
            self._store_due = now + _STORE_EVERY_S
            self._store_position()
        if now >= self._purge_due:
            self._purge_due = now + _PURGE_EVERY_S
            noted = self._progress.stored_position
            if noted is not None and noted.offset > self._purged:
                self._kafka.delete_records(self._progress.sink.topic, noted.offset)
                self._purged = noted.offset

    def _store_position(self) -> None:
        place = self.position
        if place is not None and place != self._progress.stored_position:
            # Best effort: notes that are required are written by the target itself, and the next note replaces this
            # note.
            with suppress(Unavailable):
                self._progress.store_position(place)


def open_target(
    kafka: Kafka, sink: Sink, book: SinkProgress, info: AppInfo | None, *, accept_loss: bool, patience_s: float
) -> Target:
    """Return the target of a sink: the topic, function or table to which the app publishes it."""
    head, app_id = book.claimed, info.created_ms if info else 0
    if isinstance(sink, FunctionSink):
        return FunctionTarget(sink.function, book)
    # A clone and a promoted app may publish elsewhere than the program says.
    elsewhere = (apps.published_sinks(book.store, info, head.promotion) or {}).get(sink.name)
    if isinstance(sink, TableSink):
        return TableTarget(open_table(sink, elsewhere or sink.address), book, app_id, accept_loss)
    settings = TransactionSettings(
        transactional_id=f"slackwater-{head.app}-{head.stage}-{sink.name}",
        group=consumer_group(head.app, head.stage),
        source=book.sink.topic,
        topic=elsewhere or sink.name,
        patience_s=patience_s,
    )
    return TopicTarget(kafka.transactional_producer(settings), book, app_id, accept_loss)


class Publishers(Listener):
    """Publishes the sinks of the claimed stages, with one thread for each sink.

    `claimed` has the claims by stage. `info` may be None if no stage has a sink. `accept_loss`: True to continue
    without rows that Kafka has lost, and without rows that may or may not be published. `patience_s`: seconds after
    which a thread gives up if Kafka or the sink's function keeps failing.
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
            book = SinkProgress(store, head, sink.name)
            target = open_target(kafka, sink, book, info, accept_loss=accept_loss, patience_s=patience_s)
            return SinkThread(kafka, book, target, accept_loss=accept_loss, patience_s=patience_s)

        self._new_thread = thread
        self._sinks = [(stage.name, sink) for stage in stages for sink in stage.sinks]
        self._threads: tuple[SinkThread, ...] = ()
        self._prompt_storing = False
        self.replace_threads(claimed)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def replace_threads(self, heads: Mapping[str, Manifest]) -> bool:
        """Create and stop threads so that each sink in `heads` has a thread. Returns True if any thread changed.

        A sink that starts again from its beginning gets a new thread. The new threads are not started here.
        """
        threads = {(thread.stage, thread.sink): thread for thread in self._threads}
        for stage, sink in self._sinks:
            head, thread = heads[stage], threads.get((stage, sink.name))
            now = head.sinks.get(sink.name)
            if thread is not None and (now is None or now.since != thread.first_version):
                threads.pop((stage, sink.name)).stop()
            if now is not None and (thread is None or now.since != thread.first_version):
                threads[stage, sink.name] = self._new_thread(sink, head)
        is_news = {*threads.values()} != {*self._threads}
        self._threads = tuple(threads.values())
        return is_news

    def set_prompt_storing(self, *, enabled: bool) -> None:
        if enabled != self._prompt_storing:
            self._prompt_storing = enabled
            for thread in self._threads:
                thread.set_prompt_storing(enabled=enabled)

    def on_version(self, head: Manifest, _newest: Manifest | None = None) -> None:
        for thread in self._threads:
            if thread.stage == head.stage:
                thread.offer(head)

    def check(self) -> None:
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    @property
    def is_done(self) -> bool:
        return all(thread.is_done for thread in self._threads)

    def positions(self, stage: str) -> dict[str, PublishedPosition | None]:
        return {thread.sink: thread.position for thread in self._threads if thread.stage == stage}

    def close(self) -> None:
        """Stop all threads after their current step. The next runner publishes the remaining rows."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
