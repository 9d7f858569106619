"""Trying records of a batch: from Kafka while they are many, and from the driver once they are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...snapshot.bisect.poison import Ranges, num_items
from .again import Again
from .blame import Blame
from .places import Reading


@dataclass
class Trials:
    """Tries places of a batch: see `poison.Fails`.

    A task that fails takes its Python worker with it, and those of its neighbours, and a new worker's first records
    from Kafka take longer than a small job. So what is left of a batch is read once, and goes to tasks with the job.

    Attributes:
        far: Tries records that its tasks read from Kafka, or have already.
        bring: Makes the same of records that it brings to the driver.
        few: Of how many messages at most.
        errors: That of each place that failed by itself.
    """

    far: Again
    bring: Callable[[Sequence[Reading]], Again]
    few: int
    errors: dict[int, Blame] = field(default_factory=dict)
    _near: Again | None = None
    _held: Ranges = ()

    def __post_init__(self) -> None:
        self._used = self.far

    @property
    def last(self) -> Blame | None:
        """The error of the last trial that failed."""
        return self._used.last

    def __call__(self, choices: Sequence[Ranges]) -> int | None:
        """See `poison.Fails`."""
        self._used = self._for(tuple(part for choice in choices for part in choice), again=len(choices) > 1)
        number = self._used.failing([list(self.far.places.readings(choice)) for choice in choices])
        if number is not None and self._used.last is not None and num_items(choices[number]) == 1:
            self.errors[choices[number][0][0]] = self._used.last
        return number

    def of_rows(self, place: int, pieces: Sequence[Sequence[Reading]]) -> int | None:
        """The same for pieces of the message at a place."""
        self._used = self._for(((place, place + 1),), again=True)
        return self._used.failing(pieces)

    def _for(self, places: Ranges, *, again: bool) -> Again:
        """What tries these; they are brought near only where some of them are tried `again`."""
        if all(any(low <= first and last <= high for low, high in self._held) for first, last in places):
            return self._near or self.far
        if not again or num_items(places) > self.few:
            return self.far
        self._held = places
        self._near = self.bring([one for part in places for one in self.far.places.readings((part,))])
        return self._near
