"""For tests of an app: batches of history, replayed from what `slackwater replay --bundle` wrote; Kafka in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import NotFound
from .pipeline.kafka.memory import MemoryKafka
from .pipeline.kafka.protocol import Record

if TYPE_CHECKING:
    from .pipeline.replay.compare import Comparison

__all__ = ["MemoryKafka", "Record", "Replayed", "replayed"]

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a program makes of a batch. A float that is not a number is `math.nan` itself, and so equal to it."""

    keys: tuple[tuple[tuple[object, ...], Row | None], ...]
    """Each key that the batch touches, then or now, and its row after it; None where it has none."""
    sent: dict[str, list[Row]]
    """What is sent on each channel, in the order of its rows' representations."""
    comparison: Comparison
    """All of it, beside what was committed."""

    @property
    def same(self) -> bool:
        """Whether it is what was committed."""
        return self.comparison.same

    def row(self, *key: object) -> Row | None:
        """The row of a key, by its columns' values, or None. Raises `NotFound` where the batch does not touch it."""
        for known, row in self.keys:
            if known == key:
                return row
        raise NotFound("key of the batch", repr(key), (repr(known) for known, _ in self.keys))


def replayed(bundle: str | os.PathLike[str], program: str | os.PathLike[str] | None = None) -> Replayed:
    """Replay a batch of history with a program, on a Spark of this machine; Kafka and the app's store are not needed.

    A Spark session that runs here is used, else one is started for this call.

    Args:
        bundle: The file that `slackwater replay --bundle` wrote.
        program: The Python file that declares the app; default the one in the bundle.

    Raises:
        NotFound: There is no such file, or the program has no such stage.
        Refused: The file is no bundle; or the program does not run, or cannot replay it.
    """
    from .pipeline.replay.bundle import read
    from .pipeline.replay.bundled import open_bundle
    from .pipeline.replay.compare import compare
    from .pipeline.replay.expectation import comparable, sorted_rows

    with open_bundle(read(Path(bundle)), None if program is None else Path(program)) as opened:
        found = compare(*opened)
    keys = (
        (
            tuple(map(comparable, each.key.values())),
            None if each.after is None else comparable({**each.key, **each.after}),
        )
        for each in found.keys or ()
    )
    return Replayed(tuple(keys), {each.name: sorted_rows(each.replayed) for each in found.channels}, found)
