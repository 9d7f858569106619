"""Our own part of a task in a Python worker of Spark's: the worker is set up once, and our errors are marked.

Errors come to the driver as text, beside those of the user's code.
"""

from __future__ import annotations

import gc
import json
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from pyspark import TaskContext

from ...errors import BadRecord

Feed = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What `mapInArrow` takes."""


@dataclass(frozen=True, slots=True)
class ErrorMark:
    """What the errors of our own part of a task carry, as a note: so their class and their way stay as they are.

    It travels to tasks inside what runs there. No record, and nothing that a user's function quotes of one, can hold
    it: it is new in each process that plans batches, and is in no table, topic or log of the app's.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Our own part: what it raises is marked. The user's code runs outside, or tells its errors as values."""
        try:
            yield
        except Exception as error:
            bad = error.message if isinstance(error, BadRecord) else None
            error.add_note(f"{self.token} {json.dumps(bad)}")
            raise

    def on(self, feed: Feed) -> Feed:
        """A feed all of which is our own."""

        def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with self.own():
                yield from feed(batches)

        return marked

    def told(self, text: str) -> tuple[str | None, ...]:
        """For each marked error in a text, what it says of a bad record; None where no record is at fault."""
        # What Spark makes of a text may go on behind it, in the same line.
        notes = text.split(f"{self.token} ")[1:]
        return tuple(json.JSONDecoder().raw_decode(note)[0] for note in notes)

    def without(self, text: str) -> str:
        """The text as users may see it, without its notes."""
        return "".join(line for line in text.splitlines(keepends=True) if self.token not in line)


ERROR_MARK = ErrorMark()
"""This process's."""


_AT_LEAST = 100_000
"""Objects between two collections: a chunk of Kafka's messages, of which no two refer to each other, is 10,000. By
Python's own measure, 700, a fourth of the time of reading them went into collections that found nothing."""


@cache
def configure_worker() -> None:
    """Let this worker survive signals, and its garbage collections pass over what it has imported. Once a process.

    A terminal sends Ctrl-C to every process, a service manager SIGTERM, and the batch under way shall end: who started
    this worker ends it when it is time. And Spark's workers collect all their garbage after every task, which costs
    them more than a small task when they look through every module each time.

    Does nothing in any other process, which may read as a worker does: it hears of Ctrl-C.
    """
    if TaskContext.get() is None:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(_AT_LEAST)
