"""Trying records of a batch: from Kafka while they are many, and from the driver once they are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...snapshot.bisect.poison import Ranges, num_items
from .again import Again
from .blame import Blame
from .places import Reading

_NEAR = 40_000
"""Messages that are brought to the driver at once."""
NEAR_TASKS = 32
"""Tasks over these: each costs little, as it need not turn to Kafka."""


@dataclass
class Trials:
    """Tries places of a batch: see `poison.Fails`.

    A task that fails takes its Python worker with it, and those of its neighbours, and a new worker's first records
    from Kafka take longer than a small job. So what is left of a batch is read once, and goes to tasks with the job.
    """

    far: Again
    bring: Callable[[Sequence[Reading]], Again] | None
    """Makes the same of records that it brings to the driver; None where they are there already."""
    errors: dict[int, Blame] = field(default_factory=dict)
    """That of each place that failed by itself."""
    _near: Again | None = None
    _held: Ranges = ()

    @property
    def last(self) -> Blame | None:
        """The error of the last trial that failed."""
        return self._used.last

    @property
    def count(self) -> int:
        """How many jobs were run, those for records that are not held any more left out."""
        return self.far.trials + (self._near.trials if self._near is not None else 0)

    def __call__(self, choices: Sequence[Ranges]) -> int | None:
        """See `poison.Fails`."""
        self._used = self._for(tuple(part for choice in choices for part in choice))
        number = self._used.failing_piece([list(self.far.places.readings(choice)) for choice in choices])
        if number is not None and self._used.last is not None and num_items(choices[number]) == 1:
            self.errors[choices[number][0][0]] = self._used.last
        return number

    def __post_init__(self) -> None:
        self._used = self.far

    def of_rows(self, place: int, pieces: Sequence[Sequence[Reading]]) -> int | None:
        """The same for pieces of the message at a place."""
        self._used = self._for(((place, place + 1),))
        return self._used.failing_piece(pieces)

    def _for(self, places: Ranges) -> Again:
        """What tries these."""
        if self.bring is None or num_items(places) > _NEAR:
            return self.far
        held = all(any(low <= first and last <= high for low, high in self._held) for first, last in places)
        if self._near is None or not held:
            self._held = places
            self._near = self.bring([one for part in places for one in self.far.places.readings((part,))])
        return self._near
