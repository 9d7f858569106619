"""What an app has been: its moments, what changed from one to the next, and where something went wrong."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import duckdb

from .. import instants
from ..errors import Usage
from ..keep.rejected.listing import RejectedRecords, rejected
from ..moments.cut.lineage import Window
from ..moments.cut.resolve import resolve
from ..moments.cut.stored import Snapshot, list_snapshots
from ..moments.diff.key_history import key_history
from ..moments.query.answers import as_relation
from ..moments.query.log import entries
from ..results import verdict
from ..results.document import Block, Title
from ..results.shown import Shown
from ..search.flips import Flips, scan
from ..search.programs import Function
from ..search.search import Edge, bisect
from ..search.verdict import Guilty, Step, Verdict
from .connection import Connection
from .moment import Moment
from .programs import predicate_of, record_behind
from .results import Difference, KeyHistory, Log


class AppHistory(Shown):
    """The history of an app, which is only read here: `StoredApp` has what changes an app."""

    def __init__(self, client: Connection, name: str) -> None:
        self._client = client
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first. One listing, and one read for each.

        Raises:
            Unavailable: the store did not answer.
        """
        return list_snapshots(self._client.store, self._name)

    def at(self, moment: str | datetime = "now", *, stage: str = "") -> Moment:
        """A moment of the app: consistent over all its stages, and always the same once it is here.

        Args:
            moment: what stands behind the `@` of a ref: a snapshot's name, a span back (`-5m`; s, m, h, d), a time in
                ISO form (local, unless it says otherwise) or a datetime, `~3` for commits of data back, `now`. A whole
                ref, as `log` and `bisect` show it, will do.
            stage: a moment of this stage: then also one of its versions, `v42`.

        Raises:
            Usage: that is no moment, or one of another app, or the client is closed.
            NotFound: there is no such snapshot, stage or version, or the history begins later.
            Corruption: a manifest is damaged.
            Unavailable: the store did not answer.
        """
        now_ms = instants.now_ms()
        ref = self._ref(moment, stage)
        return Moment(self._client, ref, resolve(self._client.store, ref, now_ms=now_ms))

    def log(self, limit: int = 20, *, stage: str = "") -> Log:
        """The newest `limit` commits (0 for all), newest first: of the app, or of one stage.

        Raises:
            NotFound: there is no such stage.
            Unavailable: the store did not answer.
        """
        return Log(entries(self._client.store, self._name, limit, stage=stage))

    def diff(self, before: str | datetime, after: "str | datetime | Moment" = "now", *, table: str = "") -> Difference:
        """The rows that differ between two moments, as `Moment.diff` finds them.

        Args:
            before: the first moment, as `at` takes it.
            after: the second; one of another app, such as a clone's, is given as a `Moment`.
            table: only this table; empty for all.

        Raises:
            Usage: a moment is malformed.
            NotFound: there is no such moment or table.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: a store did not answer.
        """
        return self.at(before).diff(after if isinstance(after, Moment) else self.at(after), table=table)

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes (0 for all) of the row of one key, newest first, over the versions that are left.

        Args:
            table: the table's name.
            key: as `Moment.get` takes it.
            limit: how many at most.

        Raises:
            NotFound: there is no such table, or a version was collected meanwhile.
            Usage: there are not as many values as key columns, or one is not of its column's type.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: the store did not answer.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        now_ms = instants.now_ms()
        found = key_history(client.store, client.cache, self._name, table, values, limit=limit, now_ms=now_ms)
        return KeyHistory(found)

    def rejected(self, *, stage: str = "", limit: int = 50, every: bool = False) -> RejectedRecords:
        """The newest `limit` records (0 for all) that stages rejected and that wait to be retried; or `every` one.

        Args:
            stage: only those of this stage; empty for all.
            limit: how many at most.
            every: also those that were retried.

        Raises:
            NotFound: there is no such stage.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: the store did not answer.
        """
        client, cut = self._client, resolve(self._client.store, self._name, now_ms=instants.now_ms())
        return rejected(client.store, client.cache, cut, stage=stage, limit=limit, every=every)

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
        on_step: Callable[[Step], None] | None = None,
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
            Corruption: an SST is not what its manifest promises.
            Unavailable: the store or Kafka did not answer.
            SlackwaterError: the function raised something, or the command stopped the search.
        """
        client = self._client
        predicate = predicate_of(client.store, self._name, where, check, table, python, run)
        verdict = bisect(
            client.store,
            client.cache,
            self._name,
            predicate,
            good=self._ref(good) if good is not None else None,
            bad=self._ref(bad) if bad is not None else None,
            edge=edge,
            on_step=on_step,
            reader=client.channels() if predicate.channels else None,
        )
        good_moment = Moment(client, verdict.good_ref, verdict.good) if verdict.good_ref else None
        record = record_behind(client, self._name, verdict, code) if code and not verdict.candidates else None
        return Bisection(verdict, good_moment, Moment(client, verdict.bad_ref, verdict.bad), record)

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

        Reads what versions wrote, once, and no version's whole state.

        Args:
            where: SQL that returns the wrong rows of one table, of which each is wrong or not by itself.
            check: a condition that must hold for each row.
            table: as of `bisect`.
            good: where to begin, as `at` takes it; default the beginning of the history.
            bad: where to end; default now.

        Raises:
            Refused: the condition is not one on single rows, or versions in between were thinned out. Others as
                `bisect`.
        """
        client = self._client
        return scan(
            client.store,
            client.cache,
            self._name,
            predicate_of(client.store, self._name, where, check, table),
            good=self._ref(good) if good is not None else None,
            bad=self._ref(bad) if bad is not None else None,
        )

    def _ref(self, moment: str | datetime, stage: str = "") -> str:
        text = moment.isoformat() if isinstance(moment, datetime) else moment
        if "@" in text or "/" in text:
            if text.partition("@")[0].partition("/")[0] != self._name:
                raise Usage(f"{text} is a moment of another app; expected one of {self._name!r}")
            if stage:
                raise Usage(f"{text} is a whole ref, and stage {stage!r} beside it says something else; leave one out")
            return text
        return f"{self._name}/{stage}@{text}" if stage else f"{self._name}@{text}"

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self._name} in {self._client.root}"),)


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
