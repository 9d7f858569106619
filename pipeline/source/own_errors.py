"""Marks the errors of our own part of a task: to the driver they come as text, beside those of the user's code."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

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
