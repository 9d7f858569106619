"""MCP tools. A function's parameters are the tool's arguments, and its docstring is read by models."""

from typing import Unpack

from ...client.declared.questions import (
    DiffOptions,
    ImpactOptions,
    ReconcileOptions,
    SearchOptions,
    VerifyOptions,
    WhyNotOptions,
    WhyOptions,
)
from ...client.show import rows as shown_rows
from ...client.show import values
from ...client.show.shown import attributes
from ...errors import Usage
from ...snapshot.bisect.verdict import Evaluation
from ...snapshot.query.columns import select
from ...store.archive import index
from ..acting.finding import (
    bisect_and_explain,
    explain_absence,
    explain_row,
    reconcile_tables,
    replay_batch,
    trace_impact,
    verify_moment,
)
from ..declare import AppName, KeyOrNone, Moment, Record, Stage, Table, TableRef
from .answers import (
    Document,
    ToolAnswer,
    absence_document,
    change_documents,
    commit_document,
    diff_documents,
    explanation_document,
    impact_document,
    iso_time,
    key_change_document,
    reconciliation_document,
    verdict_document,
)
from .declared import AppOrNone, ColumnNames, KeyText, KeyTexts, Ref, ResultLimit, Sql, ToolCall, VersionNumber, tool


@tool("Apps, tables and columns")
async def apps(call: ToolCall, app: AppOrNone = "") -> ToolAnswer:
    """List the apps; or, of one app, its stages, tables and columns.

    For one app, also returns the newest versions, the offsets read from each topic, the snapshots, and the archived
    input. Call this first: the arguments of the other tools are names that it returns.
    """
    request, client = call.request, call.request.service.client
    if not app:
        names = [
            name for name in await request.service.in_thread(lambda: client.apps) if request.grant.may_read_app(name)
        ]
        return ToolAnswer({"apps": names, "next": "call apps with app=NAME for details"}, "apps", len(names))
    reading = await request.moment(app, "now")

    def described() -> ToolAnswer:
        stored_app, grant, cut = request.app(app), request.grant, reading.moment.cut
        tables = [table for table in shown_rows.tables_data(cut) if grant.may_read_table(table["table"])]
        document: Document = {
            "app": app,
            "versions": cut.versions,
            "time": iso_time(cut.time_ms),
            "tables": [
                {
                    "table": table["table"],
                    "columns": [{name: col[name] for name in ("name", "type", "key")} for col in table["columns"]],
                }
                for table in tables
            ],
            "read_up_to": reading.offsets(*[table["table"] for table in tables]) if tables else {},
        }
        if grant.may_read_table("*"):
            document["snapshots"] = [snapshot.name for snapshot in stored_app.snapshots][-50:]
            document["archived_input"] = [
                archive.topic for archive in index.iter_archives(client.store, stored_app.name)
            ]
        document["can_be_replayed"] = app in request.service.options.programs
        document["values"] = (
            "shown"
            if call.masking.show
            else "hidden by pseudonyms (UUIDs), which are equal for equal values of all tables"
        )
        return ToolAnswer(document, "snapshots", len(tables))

    return await call.in_thread(described)


@tool("Commits of an app")
async def log(call: ToolCall, app: AppName, limit: ResultLimit = 20, stage: Stage = "") -> ToolAnswer:
    """The newest commits of an app, or of one stage.

    Returns, for each commit, its time, kind (batch, edit, migration, rewind …), number of rows, offsets read, and
    deploys of another program. Use it to see what happened around a time; then `diff` two moments, or `bisect` to find
    the commit that introduced an error.
    """
    call.request.grant.check_all_tables("the log of an app")

    def build() -> ToolAnswer:
        stored_app = call.request.app(app)
        entries = stored_app.log(limit, stage=stage)
        return ToolAnswer(
            {"commits": [commit_document(entry, app, call.masking) for entry in entries]}, "commits", len(entries)
        )

    return await call.in_thread(build)


@tool("SQL at a moment", verb="sql")
async def query(call: ToolCall, app: AppName, sql: Sql, ref: Ref = "now", limit: ResultLimit = 50) -> ToolAnswer:
    """Result of a SELECT over the tables of an app at a moment.

    Use it to count, to find out what is wrong, and to try a predicate before `bisect`. If values are hidden, SQL sees
    pseudonyms (UUIDs) instead of the values. Pseudonyms can only be counted, grouped, joined, compared with each other
    and with pseudonyms from earlier answers, and tested for NULL. Versions, offsets and times of records are not
    hidden.
    """
    request, masking = call.request, call.masking
    reading = await request.moment(app, ref)
    question = request.sql_statement(reading, ref, "", sql, limit)
    result = await request.service.statements.execute(question, request.grant.name)

    def document() -> ToolAnswer:
        table = result.table()
        masking.names.remember(result.named)
        rows = [{name: masking.sql_value(value) for name, value in row.items()} for row in values.rows_as_dicts(table)]
        columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        more = (
            f"there are more than {len(rows)} rows: narrow the query, or raise the limit" if result.is_cut_off else None
        )
        notes = [note.removeprefix("note: ") for note in result.notes]
        about = {"versions": reading.moment.versions, "columns": columns, "rows": rows, "cut_off": more, "notes": notes}
        return ToolAnswer(about, "rows", len(rows))

    return await call.in_thread(document)


@tool("Rows by key")
async def get(
    call: ToolCall,
    app: AppName,
    table: Table,
    keys: KeyTexts,
    ref: Ref = "now",
    columns: ColumnNames = (),  # type: ignore[assignment]
) -> ToolAnswer:
    """Rows of a table by key at a moment, null for a key without a row.

    Also returns the version, and the offsets that it has read. Use it to look at known keys at several moments;
    `history` returns all changes of one key.
    """
    request, masking = call.request, call.masking
    reading = await request.moment(app, ref, table=table)

    def build() -> ToolAnswer:
        moment = reading.moment
        declared = moment.table_declaration(table)
        parsed = moment.parse_key_values(table, [masking.key(table, declared, text) for text in keys])
        rows, present = moment.read_rows(table, parsed)
        keys_and_rows = zip(keys, values.rows_as_dicts(select(table, rows, columns)), present.tolist(), strict=True)
        about = {"version": moment.cut.tables[table].version, "time": iso_time(moment.cut.tables[table].time_ms)}
        listed = [{"key": key, "row": masking.row(row) if flag else None} for key, row, flag in keys_and_rows]
        return ToolAnswer(about | {"offsets": reading.offsets(table), "rows": listed}, "rows", len(listed))

    return await call.in_thread(build)


@tool("What changed between two moments")
async def diff(
    call: ToolCall,
    app: AppName,
    before: Moment,
    after: Moment = "now",
    limit: ResultLimit = 20,
    **options: Unpack[DiffOptions],
) -> ToolAnswer:
    """Rows that differ between two moments of an app, of one table or of all.

    Returns the numbers of added, removed and changed rows, the columns that differ, and the first differing rows. Use
    it with a moment before and one after an error; it reads only what changed. Then use `history` of a key, or
    `bisect`.
    """
    call.request.grant.check_table(options["table"] or "*")

    def build() -> ToolAnswer:
        compared = call.request.app(app).diff(before, after, **options)
        tables, rows = diff_documents(compared.full_diffs, limit, call.masking)
        return ToolAnswer({"refs": compared.refs, "tables": tables, "rows": rows}, "rows", len(rows))

    return await call.in_thread(build)


@tool("Changes of one key")
async def history(call: ToolCall, app: AppName, table: Table, key: KeyText, limit: ResultLimit = 20) -> ToolAnswer:
    """Changes of one key's row, newest first.

    Returns, for each change, the version, the row before and after the change, and the offsets that the version read.
    Use it when a known key has a wrong row; pass the version that made the row wrong to `replay`.
    """
    call.request.grant.check_table(table)

    def build() -> ToolAnswer:
        stored_app = call.request.app(app)
        changed = stored_app.history(
            table, call.masking.key(table, stored_app.at().table_declaration(table), key), limit=limit
        ).full_history
        listed_changes = [key_change_document(change, app, call.masking) for change in changed.changes]
        about = {"table": table, "changes": listed_changes, "whole_from": changed.whole_from or None}
        return ToolAnswer(about, "changes", len(listed_changes))

    return await call.in_thread(build)


@tool("The commit and the record that introduced an error", verb="bisect", is_long=True)
async def bisect(call: ToolCall, app: AppName, limit: ResultLimit = 5, **wrong: Unpack[SearchOptions]) -> ToolAnswer:
    """The first commit of an app at which a predicate fails, and the input record that caused it.

    A binary search over all commits. Give the predicate by `where`, a SELECT that returns rows when something is wrong
    (its key columns identify the wrong keys) or a condition that wrong rows of `table` meet; or by `check`, a condition
    that must hold for each row of `table`. Returns the commit, the offsets that it read (`input`), the keys that it
    changed; `cause` with its class (record, records, duplicate, watermark, time, absence, deploy, operation, unknown),
    whether it is proved, and the evidence; and `record` (topic, partition, offset) if the cause is a record and the
    server has the program. Without the program, the cause is among the records at the offsets of `input`. If the input
    is archived, search them with the tool `query`: SELECT … FROM input('topic').
    """
    request, masking = call.request, call.masking
    stored_app = await request.app_with_all_tables(app, "a bisect")

    def on_step(step: Evaluation) -> None:
        call.progress(step.number, step.total, f"{step.ref or 'the beginning'}: {step.answer}")

    result = await bisect_and_explain(request, stored_app, wrong, on_step)
    return await call.in_thread(
        lambda: ToolAnswer(verdict_document(result, limit, masking), "keys", result.verdict.rows.num_rows)
    )


@tool("Replay a batch", verb="bisect", is_long=True)
async def replay(
    call: ToolCall, app: AppName, stage: Stage, version: VersionNumber, key: KeyOrNone = "", limit: ResultLimit = 20
) -> ToolAnswer:
    """Replay the batch of one version of a stage with the app's program, and compare it with the commit.

    Returns `same`, and the keys whose rows differ. Use it to see whether the current program would repeat the error.
    Requires `can_be_replayed` of `apps`; the app itself is not changed.
    """
    request, masking = call.request, call.masking
    stored_app = await request.app_with_all_tables(app, "a replay")
    comparison, notes = await replay_batch(
        request, stored_app, stage, version, lambda declared: masking.key(stage, declared, key) if key else ()
    )

    def document() -> ToolAnswer:
        different = comparison.different
        about: Document = {
            "ref": f"{app}/{stage}@v{version}",
            "same": comparison.same,
            "read": [{"topic": topic, "records": count} for topic, count in comparison.read],
            "keys_committed": comparison.committed.num_rows if comparison.committed is not None else None,
            "keys_replayed": comparison.num_replayed,
            "keys_that_differ": len(different or ()) + comparison.hidden,
            "channels": [
                {"channel": channel.name, "missing": channel.missing.num_rows, "added": channel.added.num_rows}
                for channel in comparison.channels
            ],
            "parts": [
                {"table": parts.name, "missing": parts.missing.num_rows, "added": parts.added.num_rows}
                for parts in comparison.parts
            ],
            "different": change_documents(different, limit, masking, ("committed", "replayed"))
            if different is not None
            else [],
            "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
        }
        return ToolAnswer(about, "different", len(about["different"]))

    return await call.in_thread(document)


@tool("The records that made a row", verb="bisect", is_long=True)
async def why(
    call: ToolCall, app: AppName, table: Table, key: KeyText, ref: Ref = "now", **options: Unpack[WhyOptions]
) -> ToolAnswer:
    """The input records that made a key's row at a moment, version by version, over all stages.

    Found by replays of the batches that wrote the row. Use it when `history` shows a wrong row and you need its
    records; pass one of them to `impact`. With `minimal`, also returns the smallest set of records that gives the row.
    `unknown` gives the reasons why records may be missing. Requires `can_be_replayed` of `apps`.
    """
    request, masking = call.request, call.masking
    stored_app = await request.app_with_all_tables(app, "the records of a row")
    explained, notes = await explain_row(
        request, stored_app, table, ref, options, lambda declared: masking.key(table, declared, key)
    )
    return await call.in_thread(
        lambda: ToolAnswer(explanation_document(explained, notes, masking), "records", len(explained.sources))
    )


@tool("What a record reached", verb="bisect", is_long=True)
async def impact(call: ToolCall, app: AppName, record: Record, **options: Unpack[ImpactOptions]) -> ToolAnswer:
    """Everything that an input record reached: rows, rows sent downstream and to sinks, snapshots and clones.

    Found by replays of the batches that read the record, and of later batches with rows of its keys. Use it after
    `bisect` or `why` named a record. `unknown` gives the reasons why the answer may be incomplete. Requires
    `can_be_replayed` of `apps`.
    """
    stored_app = await call.request.app_with_all_tables(app, "what a record reached")
    reached, notes = await trace_impact(call.request, stored_app, record, options)
    return await call.in_thread(
        lambda: ToolAnswer(impact_document(reached, notes, call.masking), "rows", len(reached.rows))
    )


@tool("A table compared with another one", verb="bisect", is_long=True)
async def reconcile(
    call: ToolCall,
    app: AppName,
    table: Table,
    theirs: TableRef,
    ref: Ref = "now",
    limit: ResultLimit = 20,
    **options: Unpack[ReconcileOptions],
) -> ToolAnswer:
    """Rows of a table that differ from another table's, or from the same table at another moment, and why.

    Returns the numbers of keys that agree, that differ, and that only one side has. For each differing key, returns the
    version since which it differs, and the records that are missing from the row. Use `why_not` for a single key.
    """
    request, masking = call.request, call.masking
    stored_app = await request.app_with_all_tables(app, "a reconciliation")
    compared, notes = await reconcile_tables(request, stored_app, table, ref, theirs, limit, options)
    return await call.in_thread(
        lambda: ToolAnswer(reconciliation_document(compared, notes, masking), "keys", compared.comparison.num_different)
    )


@tool("Why a record is not in a row", verb="bisect", is_long=True)
async def why_not(
    call: ToolCall, app: AppName, table: Table, key: KeyText, ref: Ref = "now", **options: Unpack[WhyNotOptions]
) -> ToolAnswer:
    """The reasons why input records of a key are not in its row: late, rejected, filtered, not read yet, and so on.

    Use it when a row is missing or one of its numbers is too small; `why` returns the records in the row. `proved` is
    false if other reasons are possible. With the app's program (`can_be_replayed` of `apps`), replays prove more.
    """
    request, masking = call.request, call.masking
    if options["where"] and not masking.show:
        raise Usage(
            "values are hidden, so records cannot be chosen by a condition", hint="give 'record', or omit 'where'"
        )
    stored_app = await request.app_with_all_tables(app, "the records of a row")
    absence, notes = await explain_absence(
        request, stored_app, table, ref, options, lambda declared: masking.key(table, declared, key)
    )
    return await call.in_thread(
        lambda: ToolAnswer(absence_document(absence, notes, masking), "reasons", len(absence.reasons))
    )


@tool("Verify a moment", is_long=True)
async def verify(call: ToolCall, app: AppName, ref: Moment = "now", **options: Unpack[VerifyOptions]) -> ToolAnswer:
    """Verify from the stored objects that a moment is consistent, complete and undamaged.

    Checks that sent = consumed + in flight for each channel, that versions are contiguous, and that objects exist. Use
    it to tell damage in the store from an error in the input or the program.
    """
    request = call.request
    stored_app = await request.app_with_all_tables(app, "a verification")
    report = await verify_moment(request, stored_app, ref, options, on_progress=lambda line: call.progress(0, 0, line))
    reason = call.masking.mask.reason
    differences = [
        attributes(difference, "check", "subject", message=reason(difference.message))
        for difference in report.differences
    ]
    checks = [attributes(check, "check", "checked", "differences") for check in report.checks]
    about = attributes(report, "ref", "consistent", "deep", checks=checks, differences=differences)
    return ToolAnswer(about | {"not_read_again": len(report.not_reread)}, "differences", len(differences))
