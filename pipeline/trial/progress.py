"""How far a program of a trial is: what there is to read, and whether it has read all of that."""

from collections.abc import Collection, Iterator, Mapping

from ...errors import Refused
from ...fold.records import ranges
from ...moments.cut.graph import Cut
from ...store.versions.manifest import Input

Ends = Mapping[str, tuple[int, ...]]
"""How far users' topics are to be read, by topic and Kafka partition."""


def in_all_to_read(cut: Cut, stages: Collection[str], ends: Ends) -> int | None:
    """How many offsets these stages have to read of users' topics; None where one reads what has no end given."""
    counts = [_left(read, ends) for read in _inputs(cut, stages)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) and {*stages} <= cut.stages.keys() else None


def check_reached(cut: Cut, stages: Collection[str], ends: Ends, what: str) -> None:
    """See that nothing is left to read of what has an end: else what differs would say nothing.

    Raises `Refused`, which begins with `what` program it is.
    """
    left = {read.topic: more for read in _inputs(cut, stages) if (more := _left(read, ends))}
    if left:
        short = ", ".join(f"{more:,} of {topic}" for topic, more in left.items())
        raise Refused(
            f"{what} ended before it had read all that the app has read, so nothing is compared; left: {short}",
            hint="the same command begins anew",
        )


def _inputs(cut: Cut, stages: Collection[str]) -> Iterator[Input]:
    for name in cut.stages.keys() & {*stages}:
        yield from (read for read in cut.stages[name].inputs.values() if not read.upstream)


def _left(read: Input, ends: Ends) -> int | None:
    if read.topic not in ends:
        return None
    return sum(one.last - one.first for one in ranges(read.offsets, ends[read.topic]))
