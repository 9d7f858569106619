"""What the page asks beside other clients: a timeline, first rows of a table, stages, what was left out, the cost."""

from typing import Annotated, Any, Unpack

import pyarrow as pa
from msgspec import Meta

from ...client import status
from ...client.declared.questions import OperationsOptions, RejectedOptions
from ...client.moment import Moment as StoredMoment
from ...client.show import rows as shown
from ...client.show import values
from ...client.show.shown import Result, encoded, fields
from ...common.durations import DAY_MS
from ...errors import Usage
from ...snapshot.query.first_rows import FIRST, FirstRows
from ..declare import AppName, Limit, Moment, Stage, Table, endpoint
from ..service import Answer, Call

_COST_OF_MS = DAY_MS
_WARM_BYTES = 256 << 20
"""A larger table is not fetched to this machine for its first rows."""
Points = Annotated[int, Meta(ge=10, le=2_000, description="About so many commits; where there are more, some of them.")]
TimeMs = Annotated[
    int, Meta(ge=0, le=1 << 53, description="A time, in milliseconds since 1970 UTC; 0 for the first, or the newest.")
]
RowLimit = Annotated[int, Meta(ge=1, le=1_000, description="At most so many rows, or a few more.")]
Start = Annotated[
    str,
    Meta(pattern=r"^(-?\d{1,19})?$", max_length=20, description="`next` of the answer before; empty for the first."),
]
Against = Annotated[
    str,
    Meta(
        pattern=r"^[^/@\x00-\x1f]*$",
        max_length=200,
        description="Another moment, as behind the @ of a ref, with which each row is compared; empty for none.",
    ),
]


@endpoint("/apps/{app}/timeline")
def timeline(asked: Call, app: AppName, points: Points = 300, from_ms: TimeMs = 0, to_ms: TimeMs = 0) -> object:
    """Commits between two times, some of them where they are many, and what stands out: snapshots, deploys."""
    found = asked.app(app, "the timeline of an app").timeline(points, from_ms=from_ms, to_ms=to_ms)
    points_of = [fields(each, "stage", "version", "time_ms", "kind", "rows") for each in found.points]
    return fields(found, "app", "commits", "marks", points=points_of, is_whole=found.is_whole)


@endpoint("/apps/{app}/at/{ref}/stages")
async def stages(asked: Call, app: AppName, ref: Moment, stage: Stage = "") -> object:
    """The stages at a moment: lag, watermark, sinks, rejected and late records; now also snapshots under way."""
    asked.grant.check_all_tables("how far an app is")
    reading = await asked.moment(app, ref, stage)
    of, cut = asked.app(app), reading.moment.cut
    if reading.is_newest:
        # Kafka is asked, too: once for all who look at the same time.
        found = await asked.service.shared(("stages", app, *cut.versions.items()), of.stages)
    else:
        found = await asked.service.in_thread(lambda: of.stages(reading.moment))
    tables = {name: manifest.stage for name, manifest in cut.tables.items()}
    about = {"app": app, "time_ms": cut.time_ms, "snapshot": cut.snapshot, "thinned_out": cut.thinned}
    return about | {"versions": cut.versions, "tables": tables} | found


@endpoint("/apps/{app}/at/{ref}/tables/{table}/rows")
async def first_rows(
    asked: Call,
    app: AppName,
    ref: Moment,
    table: Table,
    stage: Stage = "",
    limit: RowLimit = 100,
    start: Start = "",
    against: Against = "",
    against_stage: Stage = "",
) -> Answer:
    """The first rows of a table at a moment, in the order in which they are stored, and how each was at another one."""
    reading = await asked.moment(app, ref, stage, table=table)
    other = await asked.moment(app, against, against_stage, table=table) if against else None
    first = int(start or FIRST)
    if not FIRST <= first <= -FIRST - 1:
        raise Usage(f"start={start} is no place in a table", hint="it is the answer's `next`")
    sides = [each for each in (reading, other) if each is not None]
    manifests = [each.moment.cut.tables[table] for each in sides]
    etag = asked.etag("rows", *(f"v{each.version}.{each.forgotten}" for each in manifests), limit, start)
    is_fixed = all(not each.is_newest or each.moment.declared(table).ttl is None for each in sides)
    if is_fixed and etag in asked.known_etags:
        return Answer(b"", status=304, headers={"etag": etag})
    moments = reading.moment, other.moment if other is not None else None
    found = await asked.service.in_thread(lambda: _document(*moments, table, limit, first))
    if reading.is_newest and sum(sst.bytes for sst in manifests[0].ssts) <= _WARM_BYTES:
        # Whoever looks at rows goes on to other moments, which have most SSTs of this one.
        (await asked.service.newest(app)).asked_for(table)
    count = len(found["rows"])
    return asked.document(found, headers={"etag": etag} if is_fixed else {}, rows=count)


def _document(moment: StoredMoment, other: StoredMoment | None, table: str, limit: int, start: int) -> dict[str, Any]:
    """The rows; beside another moment also those that only that one has, and what each was there."""
    manifest = moment.cut.tables[table]
    now = moment.first_rows(table, limit, start=start)
    about = {
        **fields(manifest, "app", "version", "time_ms", table=table),
        "columns": shown.columns_data(manifest),
        "keys_at_most": sum(sst.rows - sst.tombstones for sst in manifest.ssts),
        "thinned_out": moment.cut.thinned,
    }
    if other is None:
        return about | {"rows": values.rows(now.rows), "next": _text(now.next_hash)}
    then = other.first_rows(table, limit, start=start)
    # Both end where the first of them does: what lies behind that is the next answer's.
    end = min((each.next_hash for each in (now, then) if each.next_hash is not None), default=None)
    key = [column.name for column in moment.declared(table).key]
    rows, changes, before = _compared(key, now.below(end), then.below(end))
    return about | {"rows": rows, "changes": changes, "before": before, "next": _text(end)}


def _compared(
    key: list[str], now: FirstRows, then: FirstRows
) -> tuple[list[dict[str, Any] | None], list[str], list[dict[str, Any] | None]]:
    """Rows of both, by hash: those of now, what became of each, and what it was where it was another."""
    was = dict(_by_key(key, then.rows))
    both = [(int(at), name, row) for at, (name, row) in zip(now.hashes, _by_key(key, now.rows), strict=True)]
    there = {name for _, name, _ in both}
    found: list[tuple[int, dict[str, Any] | None, str, dict[str, Any] | None]] = []
    for at, name, row in both:
        old = was.get(name)
        change = "added" if old is None else "" if encoded(old) == encoded(row) else "changed"
        found.append((at, row, change, old if change == "changed" else None))
    gone = zip(then.hashes, _by_key(key, then.rows), strict=True)
    found += [(int(at), None, "removed", row) for at, (name, row) in gone if name not in there]
    found.sort(key=lambda one: one[0])
    return [one[1] for one in found], [one[2] for one in found], [one[3] for one in found]


def _by_key(key: list[str], rows: pa.Table) -> list[tuple[bytes, dict[str, Any]]]:
    return [(encoded([row.get(name) for name in key]), row) for row in values.rows(rows)]


def _text(number: int | None) -> str | None:
    """As text: numbers of 64 bits are more than JavaScript's can say."""
    return None if number is None else str(number)


@endpoint("/apps/{app}/rejected")
def rejected(asked: Call, app: AppName, limit: Limit = 50, **options: Unpack[RejectedOptions]) -> Result:
    """Records that stages rejected, newest first, and how many wait to be retried."""
    return shown.rejected(asked.app(app, "what was rejected").rejected(limit=limit, **options), limit)


@endpoint("/apps/{app}/operations")
def operations(asked: Call, app: AppName, limit: Limit = 50, **options: Unpack[OperationsOptions]) -> Result:
    """What people did to the app, newest first: who, when, and why."""
    return asked.app(app, "the operations on an app").operations(limit, **options)


@endpoint("/apps/{app}/cost")
def cost(asked: Call, app: AppName) -> object:
    """What the app has stored, what it asked of the store in the last day, by the hour, and what that would cost."""
    asked.grant.check_all_tables("what an app costs")
    asked.app(app)
    return {"app": app, "costs": status.cost(asked.service.client, app, _COST_OF_MS).data}
