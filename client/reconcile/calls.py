"""Comparison of a table with external rows, and reasons why a record is not in a table, for `AppHistory`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ...common import instants
from ...errors import Usage
from ...operations.debugging.reconcile import explain
from ...operations.debugging.reconcile.compare import Matching
from ...operations.debugging.reconcile.explain import Absence, Place, Reconciliation
from ...operations.debugging.reconcile.theirs import AppTable, Theirs, names_table, source_of
from ...snapshot.bisect.verdict import RecordLocation
from ...snapshot.cut.moments import existing_stage_of_table
from ...snapshot.cut.resolve import retry_if_forgotten
from ...snapshot.query.answers import as_relation
from ...snapshot.query.sql import Bounds
from ...store.versions.apps import folder_of
from ..backends import OtherTable, split_table_ref
from ..declared.questions import ReconcileOptions, WhyNotOptions
from ..replays import open_program_file
from ..show.document import Block
from ..show.shown import Displayable
from . import result

if TYPE_CHECKING:
    import duckdb

    from ...operations.key_search.matching import MessageDecoder
    from ...store.versions.manifest import Manifest
    from ..backends import Backends
    from ..moment import Moment


@dataclass(frozen=True, slots=True, repr=False)
class Reconciled(Displayable):
    """Comparison of a table with external rows."""

    full_result: Reconciliation
    """Counts of keys; and for each explained key, the version since which it differs, and the reasons."""

    @property
    def equal(self) -> bool:
        """True if all keys agree."""
        return not self.full_result.comparison.num_different

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """Explained keys: key columns, `difference`, `theirs_…` and `ours_…` values, parting version, and reason."""
        return as_relation(result.differences_table(self.full_result))

    def _blocks(self) -> Iterator[Block]:
        return result.reconciliation_blocks(self.full_result)


@dataclass(frozen=True, slots=True, repr=False)
class WhyNot(Displayable):
    """Reasons why records are not in the row of a key."""

    full_result: Absence

    @property
    def reasons(self) -> tuple[str, ...]:
        """Kind of each reason, such as `late`. The sentences and records are in `full_result.reasons`."""
        return tuple(reason.kind for reason in self.full_result.reasons)

    def _blocks(self) -> Iterator[Block]:
        return result.absence_blocks(self.full_result)


@dataclass(frozen=True, slots=True)
class Replays:
    """Program for replays, used if stored objects do not prove a reason. Without `code`, no batch is replayed."""

    code: str | Path | None = None
    progress: Callable[[str], None] = lambda _doing: None


def reconcile_table(
    client: Backends,
    moment: Moment,
    table: str,
    theirs: Theirs,
    options: ReconcileOptions,
    *,
    max_keys: int | None,
    replays: Replays,
) -> Reconciled:
    """Compare a table at a moment; see `AppHistory.reconcile`."""
    matching = Matching(dict(options["on"]), dict(options["columns"]), options["time"], options["tolerance"])
    with _open_place(client, moment, table, replays) as place:

        def compared() -> Reconciliation:
            return explain.reconcile(place, theirs, matching, max_keys=max_keys)

        return Reconciled(retry_if_forgotten(client.store, place.cut.app, compared))


def explain_absence(
    client: Backends,
    moment: Moment,
    table: str,
    key: object,
    options: WhyNotOptions,
    *,
    replays: Replays,
    bounds: Bounds | None,
) -> WhyNot:
    """Explain why records are not in a row; see `AppHistory.why_not`."""
    if options["record"] and options["where"]:
        raise Usage("--record and --where (record= and where=) exclude each other", hint="give one of them")
    record = RecordLocation.parse(options["record"]) if options["record"] else None
    if record is not None and record.row is not None:
        raise Usage(
            f"{record} is a row in a repartition topic; expected a record of a topic that the app reads",
            hint="give a record of your own topic: TOPIC[PARTITION]@OFFSET",
        )
    values = key if isinstance(key, tuple) else (key,)
    with _open_place(client, moment, table, replays) as place:

        def found() -> Absence:
            return explain.why_not(place, values, record=record, where=options["where"], bounds=bounds)

        return WhyNot(retry_if_forgotten(client.store, place.cut.app, found))


def open_theirs(client: Backends, theirs: pa.Table | str | Path | OtherTable) -> Theirs:
    """Return the external rows that a Python value or text names: rows in memory, a file, query, URL or table."""
    if isinstance(theirs, pa.Table):
        return theirs
    if isinstance(theirs, str) and names_table(theirs):
        theirs = OtherTable(theirs)
    if not isinstance(theirs, OtherTable):
        return source_of(str(theirs))
    from ..moment import Moment

    app, table, at = split_table_ref(theirs.ref)
    folder = folder_of(client.store, app)
    stage = existing_stage_of_table(client.store, folder, table, called=app)
    moment = Moment.from_ref(client, f"{folder}/{stage}{at}", "compared")
    return AppTable(client.store, client.cache, moment.current_cut(), table, theirs.ref)


@contextmanager
def _open_place(client: Backends, moment: Moment, table: str, replays: Replays) -> Iterator[Place]:
    cut = moment.current_cut()
    place = Place(
        client.store,
        client.cache,
        cut,
        table,
        cut.seen_ms or instants.now_ms(),
        client.channels(),
        client.settings.declared_fields(),
        _formats(cut.stages.values()),
    )
    if replays.code is None:
        yield place
        return
    stage = place.stage  # raises for an unknown table, before Spark is started
    with open_program_file(client, cut.app, replays.code, replays.progress) as program:
        from ...operations.debugging.reconcile.replayed import ReplayedFates

        yield replace(place, settle=ReplayedFates(program, cut.stages, stage).settle)


def _formats(heads: Iterable[Manifest]) -> MessageDecoder | None:
    sources = (source for head in heads for line in head.lineage.values() for some in line.values() for source in some)
    if not any(source.format for source in sources):
        return None
    # Imported late: it loads Spark.
    from ...pipeline.messages.decode import RegistryDecoder

    return RegistryDecoder()
