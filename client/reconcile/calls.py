"""Comparison of a table with external rows, and reasons why a record is not in a table, for `AppHistory`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
from ...store.versions.apps import folder_of
from ..backends import split_table_ref
from ..declared.questions import ReconcileOptions, WhyNotOptions
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
    """Numbers of keys; and for each explained key, the version since which it differs, and the reasons."""

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


def reconcile_table(
    client: Backends,
    moment: Moment,
    table: str,
    theirs: Theirs,
    options: ReconcileOptions,
    *,
    max_keys: int | None,
) -> Reconciled:
    """Compare a table at a moment; see `AppHistory.reconcile`."""
    matching = Matching(dict(options["on"]), dict(options["columns"]), options["time"], options["tolerance"])
    place = _place(client, moment, table)

    def compared() -> Reconciliation:
        return explain.reconcile(place, theirs, matching, max_keys=max_keys)

    return Reconciled(retry_if_forgotten(client.store, place.cut.app, compared))


def explain_absence(client: Backends, moment: Moment, table: str, key: object, options: WhyNotOptions) -> WhyNot:
    """Explain why records are not in a row; see `AppHistory.why_not`."""
    if options["record"] and options["where"]:
        raise Usage("record and where both name the records", hint="give one of them")
    record = RecordLocation.parse(options["record"]) if options["record"] else None
    if record is not None and record.row is not None:
        raise Usage(f"{record} is a row of a message in a repartition topic", hint="name the record of your topic")
    place, values = _place(client, moment, table), key if isinstance(key, tuple) else (key,)

    def found() -> Absence:
        return explain.why_not(place, values, record=record, where=options["where"])

    return WhyNot(retry_if_forgotten(client.store, place.cut.app, found))


def open_theirs(client: Backends, theirs: pa.Table | str | Path) -> Theirs:
    """Return the external rows that a value or a text names: rows in memory, a file, a query, a URL or a table."""
    if isinstance(theirs, pa.Table):
        return theirs
    if isinstance(theirs, Path) or not names_table(theirs):
        return source_of(str(theirs))
    from ..moment import Moment

    app, table, at = split_table_ref(theirs)
    folder = folder_of(client.store, app)
    stage = existing_stage_of_table(client.store, folder, table, called=app)
    moment = Moment.from_ref(client, f"{folder}/{stage}{at}", "compared")
    return AppTable(client.store, client.cache, moment.current_cut(), table, theirs)


def _place(client: Backends, moment: Moment, table: str) -> Place:
    cut = moment.current_cut()
    return Place(
        client.store,
        client.cache,
        cut,
        table,
        cut.seen_ms or instants.now_ms(),
        client.channels(),
        client.settings.declared_fields(),
        _formats(cut.stages.values()),
    )


def _formats(heads: Iterable[Manifest]) -> MessageDecoder | None:
    sources = (source for head in heads for line in head.lineage.values() for some in line.values() for source in some)
    if not any(source.format for source in sources):
        return None
    # Imported late: it loads Spark.
    from ...pipeline.messages.decode import RegistryDecoder

    return RegistryDecoder()
