"""Asking the predicate at places of the line: no moment twice, and none whose tables hold the same rows as another."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from ...errors import Gone, NotFound, Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ..cut.graph import Cut
from ..take.capture import ChannelReader
from .between import Between
from .predicate import At, Predicate, Skip, Wanted
from .verdict import Answer, Step


@dataclass(frozen=True, slots=True)
class Judge:
    """Says of moments whether they are good, bad or neither, and remembers it."""

    store: ObjectStore
    cache: SstCache
    predicate: Predicate
    between: Between
    """The stretch that is searched; says what decides the predicate."""
    on_step: Callable[[Step], None] | None
    reader: ChannelReader | None
    """Reads records in flight."""
    judged: dict[tuple[frozenset[object], ...], Step] = field(default_factory=dict)
    """The answers, in their order, by what decides them."""
    lacking: dict[object, str] = field(default_factory=dict)
    """What the predicate names and tables of these columns do not have."""
    able: set[object] = field(default_factory=set)
    """With tables of these columns it could be judged."""

    def judge(self, cut: Cut, to_come: int) -> Step:
        """The answer at a moment; `to_come` is how many will follow, as far as one can tell.

        Where the predicate fails, that is a skip: but for the first moment of all, the bad end, where it must work.
        """
        content = self.between.content(cut)
        if content in self.judged:
            return self.judged[content]
        if (why := self.lacking.get(self._columns(cut))) is not None:
            return Step(0, 0, self.ref(cut), cut, "skip", why=why, lacks=True)
        started, number = time.perf_counter(), len(self.judged) + 1
        try:
            answer, why, lacks = self._ask(cut)
            # Where the same columns were enough once, it lacks something else.
            lacks = lacks and self._columns(cut) not in self.able
        except Wanted:
            raise Wanted(cut, self.ref(cut), to_come) from None
        took_ms = round((time.perf_counter() - started) * 1000)
        step = Step(number, number + to_come, self.ref(cut), cut, answer, why=why, took_ms=took_ms, lacks=lacks)
        self.judged[content] = step
        if lacks:
            self.lacking[self._columns(cut)] = why
        elif answer != "skip":
            self.able.add(self._columns(cut))
        if self.on_step is not None:
            self.on_step(step)
        return step

    def know(self, cut: Cut, answer: Answer) -> None:
        """Take an answer for given. Raises `Refused` when another one was given for the same rows."""
        step = Step(len(self.judged) + 1, 0, self.ref(cut), cut, answer, given=True)
        same = self.judged.setdefault(self.between.content(cut), step)
        if same.answer != answer:
            raise Refused(
                f"{step.ref} is {answer}, and {same.ref}, whose tables hold the same rows, was {same.answer}",
                hint=f"`slackwater bisect log {cut.app}` shows what was said; `bisect replay` takes it corrected",
            )

    def rows(self, cut: Cut, max_rows: int) -> pa.Table:
        """What is wrong at a cut. Tables without a version yet are empty. Raises as `Predicate.rows`.

        A table that had another name then is there under both.
        """
        later = self.between.whole.heads.stages
        cut = cut.under_names_of(later)
        only = self.between.tables(cut)
        at = At(self.store, self.cache, cut, later, only, self.reader, self.ref(cut))
        return self.predicate.rows(at, max_rows)

    def ref(self, cut: Cut) -> str:
        """A ref to a moment, empty for the one before the first commit."""
        return self.between.whole.ref(cut)

    def _ask(self, cut: Cut) -> tuple[Answer, str, bool]:
        """The answer, why it is that, and whether it is a skip for want of a table or column."""
        is_first = all(step.given and not step.bad for step in self.judged.values())
        try:
            rows = self.rows(cut, 1)
            # Of code, the row says what it found wrong.
            why = str(rows.column(0)[0]) if rows.num_rows and not self.predicate.sql else ""
            return ("bad" if rows.num_rows else "good"), why, False
        except Skip as error:
            if is_first and error.lacks:
                raise Usage(f"{self.predicate.text}: {error}") from error
            return "skip", str(error), error.lacks
        except NotFound as error:
            if is_first or error.what not in ("table", "column"):
                raise
            return "skip", error.sentence, True
        except (Usage, Gone) as error:
            if is_first:
                raise
            return "skip", error.sentence, False

    def _columns(self, cut: Cut) -> object:
        """What the tables that decide the predicate look like at a cut."""
        tables = (cut.tables[name].table if name in cut.tables else None for name in sorted(self.between.tables(cut)))
        return tuple((table.key, table.values) if table else None for table in tables)
