"""Routes that read: rows by key, moments, SQL, log, snapshots, diff, history, lineage, commits."""

from collections.abc import AsyncIterator
from typing import Unpack

from ..client.declared.questions import DiffOptions, MomentOptions
from ..client.show import history as shown
from ..client.show import rows, values
from ..client.show.shown import Result, attributes
from ..errors import Usage
from ..snapshot.query.key_text import parse_key_text
from . import passing
from .declare import AppName, Columns, Format, Key, Keys, Limit, Moment, RowsOrAll, Sql, Stage, Table, Version, endpoint
from .service import ARROW, Answer, Call, arrow_bytes, event


@endpoint("/apps/{app}/at/{ref}/tables/{table}")
async def get(
    call: Call,
    app: AppName,
    ref: Moment,
    table: Table,
    key: Keys,
    column: Columns = (),  # type: ignore[assignment]
    format: Format = "",  # noqa: A002  said as ?format=
    **options: Unpack[MomentOptions],
) -> Answer:
    """Return the rows of keys in the order of the keys, null for a key without a row.

    Also returns the version, its time, and the offsets that it has read.
    """
    reading = await call.moment(app, ref, table=table, **options)
    answers = reading.cached_answers(table)
    if answers is None:
        answers = await call.service.in_thread(lambda: reading.answers_for(table))
    etag = call.etag(*answers.etag)
    headers = {} if answers.may_expire else {"etag": etag}
    if etag in call.known_etags and headers:
        return Answer(b"", status=304, headers=headers)
    keys = [tuple(parse_key_text(table, answers.declared, text)) for text in key]
    key_rows = await passing.rows_by_key(call, reading, answers, key, keys, column)
    reading.on_read(table)  # after the look-up, so that warming does not delay this answer
    if key_rows.table is not None:
        table_rows = key_rows.table.append_column(passing.FOUND_COLUMN, [list(key_rows.present)])
        return Answer(arrow_bytes(table_rows, answers.freshness), ARROW, headers=headers, rows=len(key))
    return Answer(b"%b%b]}" % (answers.json_prefix, b",".join(key_rows.json)), headers=headers, rows=len(key))


@endpoint("/apps")
def apps(call: Call) -> object:
    """Return the apps that the caller may read; `hidden` describes what the token does not cover."""
    names = [name for name in call.service.client.apps if call.grant.may_read_app(name)]
    return {"apps": names} | ({"hidden": call.grant.hidden} if call.grant.hidden else {})


@endpoint("/apps/{app}")
async def app(call: Call, app: AppName) -> object:
    """Return an app at its newest moment: versions, offsets read by each table, and tables."""
    return await moment(call, app, "now")


@endpoint("/apps/{app}/at/{ref}")
async def moment(call: Call, app: AppName, ref: Moment, **options: Unpack[MomentOptions]) -> Answer:
    """Return a moment: the version of each stage, the time, the offsets read, and the tables.

    `hidden` describes what the token does not cover.
    """
    reading = await call.moment(app, ref, follow=False, **options)
    cut = reading.moment.cut
    etag = call.etag(*(f"{name}.v{version}" for name, version in cut.versions.items()))
    if etag in call.known_etags:
        return Answer(b"", status=304, headers={"etag": etag})

    def document() -> Answer:
        tables = [table for table in rows.tables_data(cut) if call.grant.may_read_table(table["table"])]
        read = {name: reading.offsets(name) for name in cut.tables if call.grant.may_read_table(name)}
        about = {"ref": reading.moment.ref, "snapshot": cut.snapshot, "tables": tables, "read_up_to": read}
        if call.grant.hidden:
            about["hidden"] = call.grant.hidden
        return call.json_answer(reading.freshness() | about, headers={"etag": etag}, rows=len(tables))

    return await call.service.in_thread(document)


@endpoint("/apps/{app}/at/{ref}/query", verb="sql", methods=("GET", "POST"))
async def query(
    call: Call,
    app: AppName,
    ref: Moment,
    sql: Sql,
    limit: Limit = 1_000,
    format: Format = "",  # noqa: A002  said as ?format=
    **options: Unpack[MomentOptions],
) -> Answer:
    """Return at most `limit` rows of a query over the tables of a moment; `cut_off` is true if there are more."""
    reading = await call.moment(app, ref, **options)
    service = call.service
    result = await service.statements.execute(
        call.sql_statement(reading, ref, options["stage"], sql, limit), call.grant.name
    )
    fresh = await service.in_thread(reading.freshness)
    about = fresh | {"moments": result.other_moments, "cut_off": result.is_cut_off, "notes": result.notes}
    table = result.table()
    if call.wants_arrow:
        return Answer(arrow_bytes(table, about), ARROW, rows=table.num_rows)
    return await service.in_thread(lambda: call.json_answer(about | values.table_data(table), rows=table.num_rows))


@endpoint("/apps/{app}/log")
def log(call: Call, app: AppName, limit: Limit = 20, stage: Stage = "") -> Result:
    """Return commits, newest first, each with the offsets read and the duration."""
    return shown.log_result(call.app(app, "the log of an app").log(limit, stage=stage), app)


@endpoint("/apps/{app}/snapshots")
def snapshots(call: Call, app: AppName) -> Result:
    """Return snapshots, including requested ones."""
    return call.app(app).snapshot_listing()


@endpoint("/apps/{app}/diff")
def diff(
    call: Call,
    app: AppName,
    before: Moment,
    after: Moment = "now",
    before_stage: Stage = "",
    after_stage: Stage = "",
    limit: RowsOrAll = 0,
    **options: Unpack[DiffOptions],
) -> Answer:
    """Return at most `limit` rows per table that differ between two moments, of one table or of all."""
    call.grant.check_table(options["table"] or "*")
    stored_app = call.app(app)
    compared = stored_app.at(before, stage=before_stage).diff(stored_app.at(after, stage=after_stage), **options)
    lengths = [len(table_diff.changes) for table_diff in compared.full_diffs]
    shown_rows = sum(min(length, limit) if limit else length for length in lengths)
    return call.json_answer(
        shown.diff_result(compared.refs, compared.cuts, compared.full_diffs, max_rows=limit).data, rows=shown_rows
    )


@endpoint("/apps/{app}/tables/{table}/history")
def history(call: Call, app: AppName, table: Table, key: Key, limit: Limit = 20) -> Result:
    """Return the changes of one key's row, newest first, each with the input offsets that it was computed from."""
    call.grant.check_table(table)
    stored_app = call.app(app)
    values = tuple(parse_key_text(table, stored_app.at().table_declaration(table), key))
    return shown.key_history_result(stored_app.history(table, values, limit=limit).full_history, key, limit=limit)


@endpoint("/apps/{app}/lineage")
def lineage(call: Call, app: AppName, stage: Stage, version: Version = 0, after: Version = 0) -> object:
    """Return the offsets that versions of a stage read, traced back to offsets of users' topics.

    The versions are those after `after`, up to `version`; without `after`, only `version`.
    """
    if not stage:
        raise Usage("lineage needs a stage", hint="give stage=NAME")
    result = call.app(app, "the lineage of a stage").lineage(stage, version, after=after)
    return attributes(result, "stage", "direct", "sources", "lost", "records")


@endpoint("/apps/{app}/commits", streams=True)
async def commits(call: Call, app: AppName) -> AsyncIterator[bytes]:
    """Server-sent events: the newest moment, and each later one, until the client disconnects."""
    call.grant.check_app(app)
    newest = await call.service.poller(app)
    await newest.newest_moment()

    async def events() -> AsyncIterator[bytes]:
        async for reading in newest.changes():
            yield event("commit", await call.service.in_thread(reading.freshness), reading.moment.cut.time_ms)

    return events()
