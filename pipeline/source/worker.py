"""Set-up of Spark's Python workers, and tags on errors of slackwater's own code in tasks.

Errors reach the driver as text, together with errors of the user's code.
"""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from pyspark import TaskContext

from ...common import runtime
from ...errors import BadRecord

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ErrorTag:
    """Tag on errors of slackwater's own code in tasks. A tag is a note on the exception.

    The tag is pickled to tasks with their code. It is a random value of each planning process, and is stored in no
    table, topic or log. So no record can contain it, nor can any text that a user's function quotes from a record.
    """

    token: str = field(default_factory=lambda: runtime.random_hex(16), repr=False)

    @contextmanager
    def tagging(self) -> Iterator[None]:
        """Tag errors raised in the block. User code runs outside of the block, or returns its errors as values."""
        try:
            yield
        except Exception as error:
            bad = error.message if isinstance(error, BadRecord) else None
            error.add_note(f"{self.token} {json.dumps(bad)}")
            raise

    def wrap(self, function: ArrowFunction) -> ArrowFunction:
        def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with self.tagging():
                yield from function(batches)

        return marked

    def tagged_causes(self, text: str) -> tuple[str | None, ...]:
        """Return the bad record's message for each tagged error in a text; None for an error without a bad record."""
        # Spark may append text to the line of the note.
        notes = text.split(f"{self.token} ")[1:]
        return tuple(json.JSONDecoder().raw_decode(note)[0] for note in notes)

    def remove_tags(self, text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if self.token not in line)


ERROR_TAG = ErrorTag()


_GC_THRESHOLD = 100_000
"""Number of allocated objects between two garbage collections.

A chunk of Kafka messages has 10,000 objects and no cycles. With Python's default of 700, collections took a fourth of
the reading time and freed no memory.
"""


@cache
def configure_worker() -> None:
    """Make this worker ignore signals, and exclude imported modules from garbage collection. Call once per process.

    A terminal sends Ctrl-C to every process, and a service manager SIGTERM, but the current batch should finish: the
    parent ends this worker in time. Spark's workers run a full garbage collection after every task, which takes longer
    than a small task if it visits every module.

    Does nothing in a process that is not a Spark worker, because such a process should react to Ctrl-C.
    """
    if TaskContext.get() is None:
        return
    if runtime.is_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
