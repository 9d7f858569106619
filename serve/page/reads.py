"""Routes that only the page uses: timeline, stages, first rows, rejected records, operations, cost."""

from functools import partial
from typing import Annotated, Any, Unpack

import pyarrow as pa
from msgspec import Meta

from ...client import status
from ...client.declared.questions import OperationsOptions, RejectedOptions
from ...client.moment import Moment as StoredMoment
from ...client.show import rows as shown
from ...client.show import values
from ...client.show.shown import Result, attributes, encode_json
from ...common.durations import DAY_MS
from ...errors import Usage
from ...snapshot.query.columns import FIRST_HASH, FirstRows
from ..declare import AppName, Limit, Moment, Stage, Table, endpoint
from ..service import Answer, Call

_COST_PERIOD_MS = DAY_MS
_WARM_BYTES = 256 << 20
Points = Annotated[
    int, Meta(ge=10, le=2_000, description="About how many commits to return; if there are more, a selection.")
]
TimeMs = Annotated[
    int, Meta(ge=0, le=1 << 53, description="A time, in milliseconds since 1970 UTC; 0 for the first, or the newest.")
]
RowLimit = Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of rows; a few more may be returned.")]
Start = Annotated[
    str, Meta(pattern=r"^(-?\d{1,19})?$", max_length=20, description="`next` of the previous answer; empty at first.")
]
Against = Annotated[
    str,
    Meta(
        pattern=r"^[^/@\x00-\x1f]*$",
        max_length=200,
        description="Another moment, the part of a ref after the @, to compare each row with; empty for none.",
    ),
]


@endpoint("/apps/{app}/timeline")
def timeline(call: Call, app: AppName, points: Points = 300, from_ms: TimeMs = 0, to_ms: TimeMs = 0) -> object:
    """Return commits between two times, thinned out if many, with annotations such as snapshots and deploys."""
    result = call.app(app, "the timeline of an app").timeline(points, from_ms=from_ms, to_ms=to_ms)
    points_of = [attributes(point, "stage", "version", "time_ms", "kind", "rows") for point in result.points]
    return attributes(result, "app", "commits", "marks", points=points_of, is_whole=result.is_whole)


@endpoint("/apps/{app}/at/{ref}/stages")
async def stages(call: Call, app: AppName, ref: Moment, stage: Stage = "") -> object:
    """Return each stage's status at a moment: lag, watermark, sinks, rejected and late records, snapshot requests.

    Snapshot requests are present only at `now`.
    """
    stored_app = await call.app_with_all_tables(app, "the status of an app")
    # The list of apps requests this for every app. Only an app's own page, by its stream of commits, makes the app be
    # polled.
    reading = await call.moment(app, ref, stage, follow=False)
    cut = reading.moment.cut
    if reading.is_newest:
        # Stages need requests to Kafka, so concurrent callers share one result.
        now = partial(status.stages, call.service.client, stored_app.name, None, seen=cut.versions)
        stage_states = await call.service.run_shared(("stages", app, *cut.versions.items()), now)
    else:
        stage_states = await call.service.in_thread(lambda: stored_app.stages(reading.moment))
    tables = {name: manifest.stage for name, manifest in cut.tables.items()}
    about = {"app": app, "time_ms": cut.time_ms, "snapshot": cut.snapshot, "thinned_out": cut.thinned}
    return about | {"versions": cut.versions, "tables": tables} | stage_states


@endpoint("/apps/{app}/at/{ref}/tables/{table}/rows")
async def first_rows(
    call: Call,
    app: AppName,
    ref: Moment,
    table: Table,
    stage: Stage = "",
    limit: RowLimit = 100,
    start: Start = "",
    against: Against = "",
    against_stage: Stage = "",
) -> Answer:
    """Return the first rows of a table at a moment, in storage order, optionally compared with the moment `against`."""
    reading = await call.moment(app, ref, stage, table=table)
    other = await call.moment(app, against, against_stage, table=table) if against else None
    first = int(start or FIRST_HASH)
    if not FIRST_HASH <= first <= -FIRST_HASH - 1:
        raise Usage(f"start={start} is not a position in a table", hint="use the previous answer's `next`")
    sides = [side for side in (reading, other) if side is not None]
    manifests = [side.moment.cut.tables[table] for side in sides]
    etag = call.etag("rows", *(f"v{manifest.version}.{manifest.forgotten}" for manifest in manifests), limit, start)
    is_fixed = all(not side.is_newest or side.moment.table_declaration(table).ttl is None for side in sides)
    if is_fixed and etag in call.known_etags:
        return Answer(b"", status=304, headers={"etag": etag})
    moments = reading.moment, other.moment if other is not None else None
    page = await call.service.in_thread(lambda: _first_rows_document(*moments, table, limit, first))
    if reading.is_newest and sum(sst.bytes for sst in manifests[0].ssts) <= _WARM_BYTES:
        # The user will probably look at other moments, which share most SSTs with this moment.
        (await call.service.poller(app)).keep_warm(table)
    count = len(page["rows"])
    return call.json_answer(page, headers={"etag": etag} if is_fixed else {}, rows=count)


def _first_rows_document(
    moment: StoredMoment, other: StoredMoment | None, table: str, limit: int, start: int
) -> dict[str, Any]:
    manifest = moment.cut.tables[table]
    new = moment.first_rows(table, limit, start=start)
    about = {
        **attributes(manifest, "app", "version", "time_ms", table=table),
        "columns": shown.columns_data(manifest),
        "keys_at_most": sum(sst.rows - sst.tombstones for sst in manifest.ssts),
        "thinned_out": moment.cut.thinned,
    }
    if other is None:
        return about | {"rows": values.rows_as_dicts(new.rows), "next": _number_as_text(new.next_hash)}
    old = other.first_rows(table, limit, start=start)
    # Cut the rows of both moments at the smaller end hash; later rows belong to the next page.
    end = min((side.next_hash for side in (new, old) if side.next_hash is not None), default=None)
    key = [column.name for column in moment.table_declaration(table).key]
    rows, changes, old_rows = _merge_by_hash(key, new.below_hash(end), old.below_hash(end))
    return about | {"rows": rows, "changes": changes, "before": old_rows, "next": _number_as_text(end)}


def _merge_by_hash(
    key: list[str], new: FirstRows, previous: FirstRows
) -> tuple[list[dict[str, Any] | None], list[str], list[dict[str, Any] | None]]:
    """Merge the rows of two moments, ordered by hash.

    Returns three values: the new rows, the kinds of change, and the old rows.
    """
    old_by_key = dict(_by_key(key, previous.rows))
    new_by_key = [(int(at), name, row) for at, (name, row) in zip(new.hashes, _by_key(key, new.rows), strict=True)]
    new_keys = {name for _, name, _ in new_by_key}
    merged: list[tuple[int, dict[str, Any] | None, str, dict[str, Any] | None]] = []
    for at, name, row in new_by_key:
        old_row = old_by_key.get(name)
        change = "added" if old_row is None else "" if encode_json(old_row) == encode_json(row) else "changed"
        merged.append((at, row, change, old_row if change == "changed" else None))
    old_rows = zip(previous.hashes, _by_key(key, previous.rows), strict=True)
    merged += [(int(at), None, "removed", row) for at, (name, row) in old_rows if name not in new_keys]
    merged.sort(key=lambda entry: entry[0])
    return [entry[1] for entry in merged], [entry[2] for entry in merged], [entry[3] for entry in merged]


def _by_key(key: list[str], rows: pa.Table) -> list[tuple[bytes, dict[str, Any]]]:
    return [(encode_json([row.get(name) for name in key]), row) for row in values.rows_as_dicts(rows)]


def _number_as_text(number: int | None) -> str | None:
    """Return a number as text, since JavaScript cannot represent all 64-bit integers."""
    return None if number is None else str(number)


@endpoint("/apps/{app}/rejected")
def rejected(call: Call, app: AppName, limit: Limit = 50, **options: Unpack[RejectedOptions]) -> Result:
    """Return records that stages rejected, newest first, and the number of records that wait for a retry."""
    return shown.rejected_records_result(
        call.app(app, "the list of rejected records").rejected(limit=limit, **options), limit
    )


@endpoint("/apps/{app}/operations")
def operations(call: Call, app: AppName, limit: Limit = 50, **options: Unpack[OperationsOptions]) -> Result:
    """Return the log of operations on the app, newest first: who, when, and why."""
    return call.app(app, "the log of operations").operations(limit, **options)


@endpoint("/apps/{app}/cost")
def cost(call: Call, app: AppName) -> object:
    """Return stored bytes, requests of the last day by hour, and their estimated cost."""
    call.grant.check_all_tables("the cost of an app")
    call.app(app)
    return {"app": app, "costs": status.cost(call.service.client, app, _COST_PERIOD_MS).data}
