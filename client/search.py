"""Where something went wrong in an app: the first bad commit, all changes of a condition, and the record behind one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import duckdb

from ..errors import Refused, Unavailable, Usage
from ..moments.cut.lineage import Window
from ..moments.query.answers import as_relation
from ..moments.query.log import unreplayable
from ..results import verdict
from ..results.document import Block
from ..results.shown import Shown
from ..search.flips import Flips, scan
from ..search.predicate import Predicate
from ..search.programs import Function, Python
from ..search.search import Edge, bisect
from ..search.session import Asked
from ..search.verdict import Answer, Evaluation, Guilty, Verdict
from .history import AppHistory
from .moment import Moment
from .replays import record_behind


class SearchedApp(AppHistory):
    """An app whose history is searched for what made something wrong."""

    def bisect(
        self,
        *,
        where: str = "",
        check: str = "",
        table: str = "",
        python: Function | None = None,
        run: str = "",
        good: str | datetime | None = None,
        bad: str | datetime | None = None,
        edge: Edge = "",
        code: str | Path | None = None,
        on_step: Callable[[Evaluation], None] | None = None,
    ) -> "Bisection":
        """Find the first commit, of any stage, at which something is wrong. One of four ways says what that is.

        Args:
            where: SQL over the app's tables that returns rows when something is wrong.
            check: a condition in SQL that must hold: over the rows of one table or their aggregates, or as a SELECT.
                One that is NULL holds.
            table: the table that `check` is over, where its columns do not say.
            python: a function that gets a DuckDB connection with the tables as views, and returns whether the moment is
                good. It may assert instead, and raise `unittest.SkipTest` where it cannot tell.
            run: a shell command that gets the moment as the DuckDB file `$SLACKWATER_DB`, and its ref as
                `$SLACKWATER_REF`; it exits with 0 for good, 125 to skip, any other below 128 for bad.
            good: a moment at which nothing is wrong, as `at` takes it; default the beginning of the history.
            bad: a moment at which something is; default now.
            edge: `first` or `last`: which change is meant, should the search meet several.
            code: the file of the program that ran: with it the commit is replayed, on a Spark of this machine, until
                the input record is found (`Bisection.record`).
            on_step: told of each evaluation.

        Raises:
            Usage: a moment or the SQL is malformed, or there is no predicate, or more than one; or nothing says where
                Kafka is, for `code`.
            NotFound: there is no such moment, table or column.
            Refused: nothing is wrong at `bad`, or something is at `good`; or `good` is not before `bad`.
            SlackwaterError: the function raised something, or the command stopped the search.
        """
        client = self._client
        predicate = self._predicate(where, check, table, python, run)
        verdict = self.search(predicate, good=self._end(good), bad=self._end(bad), edge=edge, on_step=on_step)
        good_moment = Moment(client, verdict.good_ref, verdict.good) if verdict.good_ref else None
        record = record_behind(client, verdict, code) if code and not verdict.candidates else None
        return Bisection(verdict, good_moment, Moment(client, verdict.bad_ref, verdict.bad), record)

    def search(
        self,
        predicate: Predicate,
        *,
        good: str | None,
        bad: str | None,
        edge: Edge = "",
        known: Mapping[str, Answer] | None = None,
        on_step: Callable[[Evaluation], None] | None = None,
    ) -> Verdict:
        """As `bisect`, with any predicate, whole refs for the ends, and answers that are known, by ref."""
        client = self._client
        return bisect(
            client.store,
            client.cache,
            self.name,
            predicate,
            good=good,
            bad=bad,
            edge=edge,
            known=known,
            on_step=on_step,
            reader=client.channels() if predicate.sql and predicate.channels else None,
        )

    def scan(
        self,
        *,
        where: str = "",
        check: str = "",
        table: str = "",
        good: str | datetime | None = None,
        bad: str | datetime | None = None,
    ) -> Flips:
        """All versions at which a condition on single rows of one table went from good to bad or back.

        Reads what versions wrote, once, and no version's whole state. Arguments as of `bisect`: `where` returns the
        wrong rows of one table, of which each is wrong or not by itself, and `check` must hold for each row.

        Raises:
            Refused: the condition is not one on single rows, or versions in between were thinned out. Others as
                `bisect`.
        """
        return self.flips(self._predicate(where, check, table), self._end(good), self._end(bad))

    def flips(self, predicate: Predicate, good: str | None, bad: str | None) -> Flips:
        """As `scan`, with any predicate, and whole refs for the ends."""
        return scan(self._client.store, self._client.cache, self.name, predicate, good=good, bad=bad)

    def note_input_gone(self) -> None:
        """Tell of which versions Kafka does not hold the input any more, where it is known where Kafka is."""
        client = self._client
        if (topics := client.channels()) is None:
            return
        try:
            gone = unreplayable(client.store, self.name, topics.starts)
        except (Unavailable, Refused) as error:
            client.note(f"note: nobody knows what Kafka still holds: {error.message}")
            return
        if gone:
            versions = ", ".join(f"{stage} up to v{version}" for stage, version in gone.items())
            client.note(f"note: Kafka does not hold all input any more of {versions}: these can be found, not replayed")

    def _predicate(
        self, where: str, check: str, table: str, python: Function | None = None, run: str = ""
    ) -> Predicate:
        """What says whether a moment is bad. Raises `Usage` unless just one does, and `NotFound` for the table."""
        if python is None:
            asked = Asked(self.name, where=where, check=check, table=table, run=run)
            if not asked.by_hand:
                return asked.predicate(self._client.store)
        elif not (where or check or run):
            return Python(getattr(python, "__name__", "function"), python)
        raise Usage("say what is wrong by one of where=, check=, python= and run=")

    def _end(self, moment: str | datetime | None) -> str | None:
        return None if moment is None else self._ref(moment)


@dataclass(frozen=True, slots=True, repr=False)
class Bisection(Shown):
    """The first commit at which something was wrong; the last that may be, where moments could not be judged."""

    verdict: Verdict
    """All that was found out."""
    good: Moment | None
    """The moment right before it; None when it is the first commit."""
    bad: Moment
    """The moment that ends with it."""
    record: Guilty | None = None
    """The input record behind it, and how it was found; None where nothing was replayed."""

    @property
    def stage(self) -> str:
        """The stage whose commit it is."""
        return self.verdict.stage

    @property
    def version(self) -> int:
        """The commit's version."""
        return self.verdict.bad_version

    @property
    def windows(self) -> tuple[Window, ...]:
        """The offsets behind the commit, on users' topics."""
        return self.verdict.lineage.sources

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """What the query returns at the bad moment, up to `verdict.MAX_ROWS` rows."""
        return as_relation(self.verdict.rows)

    @property
    def keys(self) -> duckdb.DuckDBPyRelation | None:
        """The keys that the commit turned bad, with `before_…` and `after_…` values; None for a stage without table."""
        return as_relation(self.verdict.keys.flat()) if self.verdict.keys is not None else None

    def _blocks(self) -> Iterable[Block]:
        return *verdict.blocks(self.verdict, guilty=self.record), *verdict.notes(self.verdict)
