"""Asking the predicate at places of the line: no moment twice, and none whose tables hold the same rows as another."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..take.capture import ChannelReader
from .lattice import Between
from .predicate import At, Predicate
from .verdict import Step


@dataclass(frozen=True, slots=True)
class Judge:
    """Says of moments whether they are bad, and remembers it."""

    store: ObjectStore
    cache: SstCache
    predicate: Predicate
    between: Between
    """The stretch that is searched; says what decides the predicate."""
    on_step: Callable[[Step], None] | None
    reader: ChannelReader | None
    """Reads records in flight."""
    judged: dict[tuple[frozenset[object], ...], Step] = field(default_factory=dict)
    """The evaluations, in their order, by what decides them."""

    def is_bad(self, cut: Cut, to_come: int) -> bool:
        """Whether the predicate returns rows at a prefix of the line. Arguments as of `judge`."""
        return self.judge(cut, to_come).bad

    def judge(self, cut: Cut, to_come: int) -> Step:
        """The evaluation at a prefix of the line; `to_come` is how many will follow, as far as one can tell."""
        content = self.between.content(cut)
        if content not in self.judged:
            is_bad = self.rows(cut, 1).num_rows > 0
            number = len(self.judged) + 1
            ref = ref_of(self.between.whole.last(cut))
            step = self.judged[content] = Step(number, number + to_come, ref, cut, is_bad)
            if self.on_step is not None:
                self.on_step(step)
        return self.judged[content]

    def rows(self, cut: Cut, max_rows: int) -> pa.Table:
        """What the predicate returns at a cut. Tables without a version yet are empty."""
        later, only = self.between.whole.heads.stages, self.between.watched
        return self.predicate.rows(At(self.store, self.cache, cut, later, only, self.reader), max_rows)


def ref_of(commit: Manifest | None) -> str:
    """The ref of the prefix that ends with a commit; empty without one."""
    return f"{commit.app}/{commit.stage}@v{commit.version}" if commit is not None else ""
