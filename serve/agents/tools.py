"""The tools, a few lines each: what may be asked is their parameters, and their docstrings are what a model reads."""

from typing import Unpack

from ...client.declared.questions import DiffOptions, SearchOptions, VerifyOptions
from ...client.show import rows as shown_rows
from ...client.show import values
from ...snapshot.bisect.verdict import Evaluation
from ...snapshot.query.columns import select
from ...store.archive import index
from ..acting.finding import find, prove, run_again
from ..declare import AppName, KeyOrNone, Moment, Stage, Table
from .answers import Document, Told, changes, commit, differing, key_change, time, verdict
from .declared import (
    AppOrNone,
    ColumnNames,
    KeyText,
    KeyTexts,
    Ref,
    Some,
    Sql,
    ToolCall,
    VersionNumber,
    tool,
)


@tool("Apps, tables and columns")
async def apps(call: ToolCall, app: AppOrNone = "") -> Told:
    """Which apps there are; of one app its stages, tables and columns.

    Also their newest versions, how far they have read their topics, snapshots, and which input is archived. Begin
    here: other tools take these names.
    """
    asked, client = call.asked, call.asked.service.client
    if not app:
        found = [name for name in await asked.service.in_thread(lambda: client.apps) if asked.grant.may_read_app(name)]
        return Told({"apps": found, "next": "apps with app=NAME tells of one"}, "apps", len(found))
    reading = await asked.moment(app, "now")

    def described() -> Told:
        of, grant, cut = asked.app(app), asked.grant, reading.moment.cut
        tables = [each for each in shown_rows.tables_data(cut) if grant.may_read(each["table"])]
        document: Document = {
            "app": app,
            "versions": cut.versions,
            "time": time(cut.time_ms),
            "tables": [
                {
                    "table": each["table"],
                    "columns": [{name: one[name] for name in ("name", "type", "key")} for one in each["columns"]],
                }
                for each in tables
            ],
            "read_up_to": reading.offsets(*[each["table"] for each in tables]) if tables else {},
        }
        if grant.may_read("*"):
            document["snapshots"] = [each.name for each in of.snapshots][-50:]
            document["archived_input"] = [each.topic for each in index.all_of(client.store, of.name)]
        document["can_be_replayed"] = app in asked.service.options.programs
        document["values"] = (
            "shown" if call.masking.show else "hidden: equal ones have equal names, UUIDs, also across tables"
        )
        return Told(document, "snapshots", len(tables))

    return await call.in_thread(described)


@tool("Commits of an app")
async def log(call: ToolCall, app: AppName, limit: Some = 20, stage: Stage = "") -> Told:
    """The newest commits of an app, or of one stage.

    When, by which kind of change (batch, edit, migration, rewind …), how many rows and which offsets each read,
    deploys of another program. Use it to see what happened around a time; then `diff` two moments, or `bisect` for
    the commit that made something wrong.
    """
    call.asked.grant.check_all_tables("the log of an app")

    def found() -> Told:
        of = call.asked.app(app)
        entries = of.log(limit, stage=stage)
        return Told({"commits": [commit(each, app, call.masking) for each in entries]}, "commits", len(entries))

    return await call.in_thread(found)


@tool("SQL at a moment", verb="sql")
async def query(call: ToolCall, app: AppName, sql: Sql, ref: Ref = "now", limit: Some = 50) -> Told:
    """What a SELECT over the tables of an app returns at a moment.

    Use it to count, to find out what is wrong, and to try a predicate before `bisect`. Where values are hidden, SQL
    sees names, UUIDs, in their place: they can be counted, grouped, joined, compared with each other and with names
    that were shown, and be tested for NULL, and nothing else. Versions, places and times of records are as they are.
    """
    asked, masking = call.asked, call.masking
    reading = await asked.moment(app, ref)
    question = asked.question(reading, ref, "", sql, limit)
    found = await asked.service.statements.answer(question, asked.grant.name)

    def document() -> Told:
        table = found.table()
        masking.names.learn(found.named)
        rows = [{name: masking.plain(value) for name, value in row.items()} for row in values.rows(table)]
        columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        more = (
            f"there are more than {len(rows)} rows: ask for fewer, or with a larger limit" if found.is_cut_off else None
        )
        notes = [note.removeprefix("note: ") for note in found.notes]
        about = {"versions": reading.moment.versions, "columns": columns, "rows": rows, "cut_off": more, "notes": notes}
        return Told(about, "rows", len(rows))

    return await call.in_thread(document)


@tool("Rows by key")
async def get(
    call: ToolCall,
    app: AppName,
    table: Table,
    keys: KeyTexts,
    ref: Ref = "now",
    columns: ColumnNames = (),  # type: ignore[assignment]
) -> Told:
    """Rows of a table by key at a moment, null where there is none.

    With the version, and how far it has read. Use it to look at known keys now and before; `history` gives all
    changes of one.
    """
    asked, masking = call.asked, call.masking
    reading = await asked.moment(app, ref, table=table)

    def found() -> Told:
        moment = reading.moment
        declared = moment.declared(table)
        parsed = moment.keys_of(table, [masking.key(table, declared, each) for each in keys])
        rows, present = moment.rows_of(table, parsed)
        each = zip(keys, values.rows(select(table, rows, columns)), present.tolist(), strict=True)
        about = {"version": moment.cut.tables[table].version, "time": time(moment.cut.tables[table].time_ms)}
        listed = [{"key": key, "row": masking.row(row) if there else None} for key, row, there in each]
        return Told(about | {"offsets": reading.offsets(table), "rows": listed}, "rows", len(listed))

    return await call.in_thread(found)


@tool("What changed between two moments")
async def diff(
    call: ToolCall,
    app: AppName,
    before: Moment,
    after: Moment = "now",
    limit: Some = 20,
    **options: Unpack[DiffOptions],
) -> Told:
    """The rows that differ between two moments of an app, of one table or of all.

    How many were added, removed and changed, in which columns, and the first of them. Use it with a moment before
    and one after something went wrong: it reads only what changed. Then `history` of a key, or `bisect`.
    """
    call.asked.grant.check_table(options["table"] or "*")

    def found() -> Told:
        compared = call.asked.app(app).diff(before, after, **options)
        tables, rows = differing(compared.found, limit, call.masking)
        return Told({"refs": compared.refs, "tables": tables, "rows": rows}, "rows", len(rows))

    return await call.in_thread(found)


@tool("Changes of one key")
async def history(call: ToolCall, app: AppName, table: Table, key: KeyText, limit: Some = 20) -> Told:
    """The changes of one key's row, newest first.

    The version of each, the row before and after it, and the offsets that the version read. Use it when a key is
    known whose row is wrong; the version that made it wrong can be given to `replay`.
    """
    call.asked.grant.check_table(table)

    def found() -> Told:
        of = call.asked.app(app)
        changed = of.history(table, call.masking.key(table, of.at().declared(table), key), limit=limit).found
        listed = [key_change(each, app, call.masking) for each in changed.changes]
        about = {"table": table, "changes": listed, "whole_from": changed.whole_from or None}
        return Told(about, "changes", len(listed))

    return await call.in_thread(found)


@tool("The commit, and record, that made something wrong", verb="bisect", is_long=True)
async def bisect(call: ToolCall, app: AppName, limit: Some = 5, **wrong: Unpack[SearchOptions]) -> Told:
    """The first commit of an app at which something is wrong, and the input record behind it.

    A binary search over all commits. Say what is wrong by `where`, a SELECT that returns rows when it is (its key
    columns name the keys that are wrong) or a condition that wrong rows of `table` meet, or by `check`, a condition
    that must hold of each row of `table`. Gives the commit, the offsets that it read, the keys that it changed; `cause`
    by its class (record, records, duplicate, watermark, time, absence, deploy, operation, unknown), whether that is
    proved, and what shows it; and `record` (topic, partition, offset) where the cause is one, and the server has the
    program. Without that, the record is one of `input`: `query` FROM input('topic') within these offsets narrows it,
    where the input is archived.
    """
    asked, masking = call.asked, call.masking
    of = await asked.whole_app(app, "a search through the commits of an app")

    def on_step(step: Evaluation) -> None:
        call.progress(step.number, step.total, f"{step.ref or 'the beginning'}: {step.answer}")

    found = await find(asked, of, wrong, on_step)
    return await call.in_thread(lambda: Told(verdict(found, limit, masking), "keys", found.verdict.rows.num_rows))


@tool("Run a batch again", verb="bisect", is_long=True)
async def replay(
    call: ToolCall,
    app: AppName,
    stage: Stage,
    version: VersionNumber,
    key: KeyOrNone = "",
    limit: Some = 20,
) -> Told:
    """Runs the batch of one version of a stage again, elsewhere, with the app's program.

    And compares it with what was committed: `same`, and the keys that come out different. Use it to see whether
    today's program would still make the mistake. Only where `apps` says `can_be_replayed`; nothing of the app is
    touched.
    """
    asked, masking = call.asked, call.masking
    of = await asked.whole_app(app, "a replay")
    found, notes = await run_again(
        asked, of, stage, version, lambda declared: masking.key(stage, declared, key) if key else ()
    )

    def document() -> Told:
        different = found.different
        about: Document = {
            "ref": f"{app}/{stage}@v{version}",
            "same": found.same,
            "read": [{"topic": topic, "records": count} for topic, count in found.read],
            "keys_committed": found.committed.num_rows if found.committed is not None else None,
            "keys_replayed": found.num_replayed,
            "keys_that_differ": len(different or ()) + found.hidden,
            "channels": [
                {"channel": each.name, "missing": each.missing.num_rows, "added": each.added.num_rows}
                for each in found.channels
            ],
            "different": changes(different, limit, masking, ("committed", "replayed")) if different is not None else [],
            "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
        }
        return Told(about, "different", len(about["different"]))

    return await call.in_thread(document)


@tool("Prove a moment", is_long=True)
async def verify(call: ToolCall, app: AppName, ref: Moment = "now", **options: Unpack[VerifyOptions]) -> Told:
    """Recomputes from what is stored whether a moment is consistent, complete and undamaged.

    For each channel sent = consumed + in flight, versions follow each other, objects are there. Use it to tell
    damage in the store from a mistake in the input or the program.
    """
    asked = call.asked
    of = await asked.whole_app(app, "a proof")
    report = await prove(asked, of, ref, options, on_progress=lambda line: call.progress(0, 0, line))
    wrong = [
        {"check": each.check, "subject": each.subject, "message": call.masking.mask.reason(each.message)}
        for each in report.differences
    ]
    checks = [{name: getattr(each, name) for name in ("check", "checked", "differences")} for each in report.checks]
    about = {"ref": report.ref, "consistent": report.consistent, "deep": report.deep, "checks": checks}
    return Told(about | {"differences": wrong, "not_read_again": len(report.not_reread)}, "differences", len(wrong))
