"""The records for which a batch fails: searched for, left out, and the rest computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...errors import Corruption, Refused, Unavailable
from ...snapshot.bisect.poison import Passes, Ranges, Search, TooMany, num_items
from ...store.read.read_stats import Reads
from ..batch.job import Batch
from ..batch.task import Result
from ..spark.provenance import RECORD
from ..state.failing import described
from ..state.merge import Base, merge
from ..state.protocol import as_of
from .again import records_of
from .blame import Blame, blamed
from .places import Reading, place_of, record_number
from .trials import Trials

_ROUNDS = 100
"""Times that the batch is computed anew: each leaves out a record more at least."""


@dataclass
class Culprits:
    """Finds the records of one batch without which it passes.

    Attributes:
        most: How many there may be.
        near: Where the first of them is looked for first, as Spark's own tasks say, one after the other; it may as well
            be elsewhere.
        found: By number, why each is left out.
    """

    trials: Trials
    batch: Batch
    most: int
    near: Sequence[Ranges] = ()
    found: dict[int, Blame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.again = self.trials.far
        self._rounds = 0
        self._cause: Blame | None = None
        """What the batch failed of last: a record that was alone in it is to blame without a trial."""

    @cached_property
    def _search(self) -> Search:
        return Search(self.trials, self.again.width, self.most)

    def compute(self, error: Exception | None) -> tuple[Result, ...]:
        """The batch without those that are to blame; `error` is why it failed, None where it was not tried yet.

        Raises:
            TooMany: More than `most` are to blame.
            Exception: What no record is to blame for; or `error` where it is not known which.
        """
        for _ in range(_ROUNDS):
            if error is not None:
                blame = blamed(error)
                if blame is None:
                    raise error
                self._cause = blame
                more = self._of_state(blame) if blame.keys else self._of_function()
                if not more and self._rounds:
                    raise error
                self.found |= more
                if len(self.found) > self.most:
                    raise TooMany(tuple(self.found))
                self._rounds += 1
            if self.batch.stopping():
                raise error or Refused("the stage is to stop")
            try:
                return self.again.computed(self.batch.compute, self.found)
            except Exception as failed:
                error = failed
        raise error or AssertionError("nothing was tried")

    def _of_function(self) -> dict[int, Blame]:
        """Records for which the stage's function fails: one, if it is the first time, else all of them."""
        items = self.again.places.all
        try:
            places = self._search.all(items) if self._rounds else self._first(items)
        except Passes:
            return {}
        except TooMany as error:
            self.found |= {record_number(place, 0): self._blame(place) for place in error.found}
            raise
        known = {place_of(number)[0] for number in self.found}
        return {number: blame for place in places if place not in known for number, blame in self._rows(place)}

    def _first(self, items: Ranges) -> tuple[int, ...]:
        """A record without which the function may pass. Raises `Passes`, and `TooMany` where none may be left out."""
        for near in self.near:
            if num_items(near) == 1 and self.trials([near]) is None:
                continue
            with suppress(Passes):
                return (self._search.first(near),)
        return (self._search.first(items),)

    def _blame(self, place: int) -> Blame:
        blame = self.trials.errors.get(place) or self.trials.last or self._cause
        assert blame is not None  # noqa: S101  what was found has failed
        return blame

    def _rows(self, place: int) -> list[tuple[int, Blame]]:
        """The records at a place that fail: of a channel's message those of its rows, all where none does alone."""
        stretch, offset = self.again.places.at(place)
        count = self.again.num_rows(place)
        if count == 1:
            return [(record_number(place, 0), self._blame(place))]
        blames: dict[int, Blame] = {}

        def fails(choices: Sequence[Ranges]) -> int | None:
            pieces = [
                [Reading(stretch.input, stretch.partition, offset, offset + 1, rows) for rows in choice]
                for choice in choices
            ]
            number = self.trials.of_rows(place, pieces)
            if number is not None and self.trials.last is not None:
                blames[choices[number][0][0]] = self.trials.last
            return number

        rows = Search(fails, self.again.width, self.most).all(((0, count),)) or range(count)
        return [(record_number(place, row), blames.get(row) or self._blame(place)) for row in rows]

    def _of_state(self, blame: Blame) -> dict[int, Blame]:
        """Records for whose keys the state's function fails."""
        rows = self.again.rows_of(blame.keys, self.found)
        if rows is None:
            return self._by_dry_runs(blame)
        records = records_of(rows)
        numbers = rows[RECORD].to_numpy()
        plain = rows.drop_columns([RECORD])
        bound, base, table = self.again.shape.bound, self.batch.base, self.batch.base.table
        assert bound is not None and table is not None  # noqa: S101, PT018  keys are a state's
        bound = as_of(bound, self.batch.until_ms)
        errors: dict[int, Blame] = {}

        def fails(choices: Sequence[Ranges]) -> int | None:
            for number, choice in enumerate(choices):
                chosen = np.concatenate([records[first:last] for first, last in choice])
                some = plain.filter(pa.array(np.isin(numbers, chosen)))
                if not some.num_rows:
                    continue
                into = Base(table, base.ssts, self.batch.clock_ms)
                try:
                    merge(some, into, bound, base.version + 1, self.batch.store, self.batch.cache, Reads())
                except (Corruption, Unavailable):
                    raise
                except Exception as error:
                    errors[choice[-1][1] - 1] = Blame(*described(error))
                    return number
            return None

        try:
            places = Search(fails, 2, self.most).all(((0, len(records)),))
        except Passes:
            return {}
        return {int(records[place]): errors.get(place, blame) for place in places}

    def _by_dry_runs(self, blame: Blame) -> dict[int, Blame]:
        """The same where the stage's function mixes records: by jobs that merge, and write nothing."""

        def fails(choices: Sequence[Ranges]) -> int | None:
            for number, choice in enumerate(choices):
                self.again.trials += 1
                try:
                    with self.again.choosing([list(self.again.places.readings(choice))], self.found):
                        self.batch.check(self.again.rows)
                except Exception as error:
                    if blamed(error) is None:
                        raise
                    return number
            return None

        try:
            places = Search(fails, 2, self.most).all(self.again.places.all)
        except Passes:
            return {}
        return {record_number(place, row): blame for place in places for row in range(self.again.num_rows(place))}
