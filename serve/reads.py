"""What is read over HTTP, a few lines a route: ask `client`, show what `client.show` makes of it."""

from collections.abc import AsyncIterator
from typing import Unpack

from ..client.declared.questions import DiffOptions, MomentOptions
from ..client.show import history as shown
from ..client.show import rows, values
from ..client.show.shown import Result, fields
from ..errors import Usage
from ..snapshot.query.key_text import key_of
from . import passing
from .declare import (
    AppName,
    Columns,
    Format,
    Key,
    Keys,
    Limit,
    Moment,
    RowsOrAll,
    Sql,
    Stage,
    Table,
    Version,
    endpoint,
)
from .service import ARROW, Answer, Call, arrow_bytes, event


@endpoint("/apps/{app}/at/{ref}/tables/{table}")
async def get(
    asked: Call,
    app: AppName,
    ref: Moment,
    table: Table,
    key: Keys,
    column: Columns = (),  # type: ignore[assignment]
    format: Format = "",  # noqa: A002  said as ?format=
    **options: Unpack[MomentOptions],
) -> Answer:
    """Rows by key: in the order asked, null where there is none; with the version, its time, and what it has read."""
    reading = await asked.moment(app, ref, table=table, **options)
    about = reading.known(table)
    if about is None:
        about = await asked.service.in_thread(lambda: reading.about(table))
    etag = asked.etag(*about.etag)
    headers = {} if about.changes_by_itself else {"etag": etag}
    if etag in asked.known_etags and headers:
        return Answer(b"", status=304, headers=headers)
    keys = [tuple(key_of(table, about.declared, each)) for each in key]
    found = await passing.rows(asked, reading, about, key, keys, column)
    reading.asked_for(table)  # what is fetched beside answers is not in the way of this one
    if found.table is not None:
        with_found = found.table.append_column(passing.FOUND, [list(found.present)])
        return Answer(arrow_bytes(with_found, about.fresh), ARROW, headers=headers, rows=len(key))
    return Answer(b"%b%b]}" % (about.begin, b",".join(found.json)), headers=headers, rows=len(key))


@endpoint("/apps")
def apps(asked: Call) -> object:
    """The apps that may be read; `hidden` says what may not, should there be more."""
    names = [name for name in asked.service.client.apps if asked.grant.may_read_app(name)]
    return {"apps": names} | ({"hidden": asked.grant.hidden} if asked.grant.hidden else {})


@endpoint("/apps/{app}")
async def app(asked: Call, app: AppName) -> object:
    """An app at its newest moment: versions, how far each stage has read, and tables."""
    return await moment(asked, app, "now")


@endpoint("/apps/{app}/at/{ref}")
async def moment(asked: Call, app: AppName, ref: Moment, **options: Unpack[MomentOptions]) -> Answer:
    """A moment: the version of each stage, its time, how far it has read, its tables, and what is `hidden`."""
    reading = await asked.moment(app, ref, **options)
    cut = reading.moment.cut
    etag = asked.etag(*(f"{name}.v{version}" for name, version in cut.versions.items()))
    if etag in asked.known_etags:
        return Answer(b"", status=304, headers={"etag": etag})

    def document() -> Answer:
        tables = [each for each in rows.tables_data(cut) if asked.grant.may_read(each["table"])]
        read = {name: reading.offsets(name) for name in cut.tables if asked.grant.may_read(name)}
        about = {"ref": reading.moment.ref, "snapshot": cut.snapshot, "tables": tables, "read_up_to": read}
        if asked.grant.hidden:
            about["hidden"] = asked.grant.hidden
        return asked.document(reading.freshness() | about, headers={"etag": etag}, rows=len(tables))

    return await asked.service.in_thread(document)


@endpoint("/apps/{app}/at/{ref}/query", verb="sql", methods=("GET", "POST"))
async def query(
    asked: Call,
    app: AppName,
    ref: Moment,
    sql: Sql,
    limit: Limit = 1_000,
    format: Format = "",  # noqa: A002  said as ?format=
    **options: Unpack[MomentOptions],
) -> Answer:
    """What a query over the tables of a moment returns: at most `limit` rows; `cut_off` says whether there are more."""
    reading = await asked.moment(app, ref, **options)
    service = asked.service
    found = await service.statements.answer(
        asked.question(reading, ref, options["stage"], sql, limit), asked.grant.name
    )
    fresh = await service.in_thread(reading.freshness)
    about = fresh | {"moments": found.others, "cut_off": found.is_cut_off, "notes": found.notes}
    table = found.table()
    if asked.wants_arrow:
        return Answer(arrow_bytes(table, about), ARROW, rows=table.num_rows)
    return await service.in_thread(lambda: asked.document(about | values.for_json(table), rows=table.num_rows))


@endpoint("/apps/{app}/log")
def log(asked: Call, app: AppName, limit: Limit = 20, stage: Stage = "") -> Result:
    """Commits, newest first: what each read, and how long it took."""
    return shown.log(asked.app(app, "the log of an app").log(limit, stage=stage), app)


@endpoint("/apps/{app}/snapshots")
def snapshots(asked: Call, app: AppName) -> Result:
    """Snapshots, and those that were asked for."""
    return asked.app(app).all_snapshots()


@endpoint("/apps/{app}/diff")
def diff(
    asked: Call,
    app: AppName,
    before: Moment,
    after: Moment = "now",
    before_stage: Stage = "",
    after_stage: Stage = "",
    limit: RowsOrAll = 0,
    **options: Unpack[DiffOptions],
) -> Answer:
    """The rows that differ between two moments, of one table or of all; of each at most `limit`."""
    asked.grant.check_table(options["table"] or "*")
    of = asked.app(app)
    found = of.at(before, stage=before_stage).diff(of.at(after, stage=after_stage), **options)
    lengths = [len(each.changes) for each in found.found]
    shown_rows = sum(min(length, limit) if limit else length for length in lengths)
    return asked.document(shown.diff(found.refs, found.cuts, found.found, most=limit).data, rows=shown_rows)


@endpoint("/apps/{app}/tables/{table}/history")
def history(asked: Call, app: AppName, table: Table, key: Key, limit: Limit = 20) -> Result:
    """The changes of one key's row, newest first, with the offsets behind each."""
    asked.grant.check_table(table)
    of = asked.app(app)
    values = tuple(key_of(table, of.at().declared(table), key))
    return shown.key_history(of.history(table, values, limit=limit).found, key, limit=limit)


@endpoint("/apps/{app}/lineage")
def lineage(asked: Call, app: AppName, stage: Stage, version: Version = 0, after: Version = 0) -> object:
    """The offsets behind a version of a stage, or those after another one: on its inputs and on users' topics."""
    if not stage:
        raise Usage("lineage is of one stage", hint="give stage=NAME")
    found = asked.app(app, "the lineage of a stage").lineage(stage, version, after=after)
    return fields(found, "stage", "direct", "sources", "lost", "records")


@endpoint("/apps/{app}/commits", streams=True)
async def commits(asked: Call, app: AppName) -> AsyncIterator[bytes]:
    """Server-sent events: the newest moment, and each that comes after it, for as long as the connection lasts."""
    asked.grant.check_app(app)
    newest = await asked.service.newest(app)
    await newest.reading()

    async def events() -> AsyncIterator[bytes]:
        async for reading in newest.changes():
            yield event("commit", await asked.service.in_thread(reading.freshness), reading.moment.cut.time_ms)

    return events()
