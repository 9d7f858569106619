"""Edits of rows of a stage's table, by the stage's runner, or by this process if the stage has no runner.

Without a runner, this process commits the edit as the stage's next version, and recomputes the edit if another commit
came first.
"""

import dataclasses
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from ...common import instants, runtime
from ...errors import Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import codec, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import retired_error
from ...store.versions.manifest import Edit, Manifest, Sink
from ..cut.graph import Cut
from ..cut.moments import heads_of, stages_of
from ..cut.stored import notify_runners
from ..diff.key_changes import KeyChanges
from ..diff.moments import diff_table
from ..diff.stored_rows import TableSide
from ..query.row_source import RowSource
from ..take.audit_log import find_operation, operation_message, record_operation_once
from ..take.taking import RETRY_WINDOW_MS
from ..under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ..under_way.runners import (
    EDITS,
    EditRequest,
    Outdated,
    check_base,
    find_edit_version,
    live_heartbeats,
    runner_of,
    withdraw_edit,
)
from .edited import Change, EditEffect, compute_edit, read_rows, require_table

_POLL_S = 0.2
_SINK = b"sink"
"""Metadata key of a table of records: the name of their sink."""
SendRecords = Callable[[Manifest, Mapping[str, pa.Table]], Mapping[str, Sink]]
"""Function that sends records for the version after the given version, by sink. Returns the next version's sinks."""


@dataclass(frozen=True, slots=True)
class EditDone:
    """Result of an edit or a dry run."""

    app: str
    stage: str
    changes: KeyChanges | None
    """Changed rows; None if no row changed, or if an earlier call had already committed the edit."""
    version: int = 0
    runner: str = ""
    already: bool = False


def edit(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    stage: str,
    description: str,
    *,
    sql: str = "",
    source: RowSource | None = None,
    by: str,
    timeout_s: float = 60,
    again: bool = False,
    dry_run: bool = False,
    on_wait: Callable[[str], None] = lambda _runner: None,
) -> EditDone:
    """Change rows of a stage's table, by an SQL statement, or by rows that replace the stored rows of the same keys.

    `description` is one line for logs. If a runner has the stage, `on_wait` is called with the runner's name, and the
    runner makes the edit between two batches, within `timeout_s`. Repeating an interrupted call completes the edit. So
    a statement that the same user repeats within ten minutes is not executed a second time, unless `again` is set.
    Raises the errors of `StoredApp.edit`.
    """
    if bool(sql) == (source is not None):
        raise Usage("an edit needs either an SQL statement or rows", hint="give --sql TEXT or --rows FILE")
    cut = newest_active_cut(store, app, stage)
    head = cut.stages[stage]
    rows = read_rows(source, head) if source is not None else None
    done = Edit(str(runtime.ulid()), by, description, operation_message())
    data = _encode(rows) if rows is not None else b""
    checksum = xxh3_128_hexdigest(data) if data else ""
    request = EditRequest(done, stage, head.version, instants.now_ms(), sql, checksum)
    check_exclusion(store, app, Intent.EDIT, *RUNS_ELSEWHERE, dry_run=dry_run)
    requests = (other for other in EDITS.all(store, app) if other.is_same_edit(request) and not other.error)
    earlier = next(requests, None)
    if sql and not (again or dry_run) and (version := _find_recent_edit(store, app, request)):
        if earlier is not None and (finished := find_edit_version(store, earlier, head)) is not None:
            # An earlier call was killed after its entry in the audit log.
            finish_edit(store, app, earlier, finished)
        return EditDone(app, stage, None, version, already=True)
    if earlier is None or dry_run:
        preview = compute_edit(store, cache, cut, stage, Change(sql, rows), done, writes=False)
        if preview is None or dry_run:
            return EditDone(app, stage, preview.changes if preview is not None else None)
        _put_request(store, app, request, data)
    return _carry_out(store, cache, app, earlier or request, Change(sql, rows), timeout_s, on_wait)


def put_rows(
    store: ObjectStore,
    cache: SstCache,
    head: Manifest,
    change: Change,
    edit: Edit,
    *,
    send: SendRecords,
    timeout_s: float,
    on_wait: Callable[[str], None] = lambda _runner: None,
) -> EditDone:
    """Commit a repair: put rows, computed from the version `head`, into its stage's table, by its runner if any.

    `change` has rows with key, values and `DELETED`, one row per key, and records for sinks, which the same version
    sends. Without a runner, `send` sends the records. Raises `Outdated` if a version has written rows since, and the
    errors of `edit`.
    """
    assert change.rows is not None  # noqa: S101  a repair computes rows
    data = _encode(change.rows, change.records)
    request = EditRequest(
        edit,
        head.stage,
        head.version,
        instants.now_ms(),
        rows=xxh3_128_hexdigest(data),
        kind="repair",
        base=head.version,
    )
    check_exclusion(store, head.app, Intent.REPAIR, *RUNS_ELSEWHERE)
    _put_request(store, head.app, request, data)
    return _carry_out(store, cache, head.app, request, change, timeout_s, on_wait, send)


def finish_repairs(store: ObjectStore, app: str, heads: Mapping[str, Manifest]) -> None:
    """Finish the requests of interrupted repairs: record those that were committed, and withdraw the others."""
    for request in EDITS.all(store, app):
        if request.kind == "repair" and request.stage in heads:
            if (done := find_edit_version(store, request, heads[request.stage])) is not None:
                finish_edit(store, app, request, done)
            else:
                withdraw_edit(store, app, request)


def _put_request(store: ObjectStore, app: str, request: EditRequest, rows: bytes) -> None:
    """Store a request with its rows, and notify the runners. Raises `Refused` while keys are being forgotten."""
    if rows:
        store.put(keys.edit_rows(app, request.id), rows)
    EDITS.put(store, request, app)
    try:
        # A forget checks for requests only after it has written its journal, so check again.
        intent = Intent.REPAIR if request.kind == "repair" else Intent.EDIT
        check_exclusion(store, app, intent, AppCondition.FORGETTING)
    except Refused:
        withdraw_edit(store, app, request)
        raise
    notify_runners(store, app)


def _find_recent_edit(store: ObjectStore, app: str, request: EditRequest) -> int:
    """Return the version with the same edit by the same user in the last ten minutes; 0 for none."""
    since_ms, suffix, stage = request.created_ms - RETRY_WINDOW_MS, f": {request.edit.what}", request.stage
    entry = find_operation(
        store, app, "edit", lambda text: text.startswith(f"{stage} v") and text.endswith(suffix), since_ms=since_ms
    )
    return entry.after.get(stage, 0) if entry is not None and entry.by == request.edit.by else 0


def newest_active_cut(store: ObjectStore, app: str, stage: str, head: Manifest | None = None) -> Cut:
    """Return a cut with the newest version of every active stage; `head`, if given, is the version of `stage`.

    Raises `NotFound` if the app or stage does not exist, and `Refused` if the stage is retired.
    """
    heads = heads_of(store, app, stages_of(store, app, stage)) | ({stage: head} if head is not None else {})
    if heads[stage].retired:
        raise retired_error(heads[stage])
    active = {name: head for name, head in heads.items() if not head.retired}
    return Cut(app, active, seen_ms=instants.now_ms())


def change_of(store: ObjectStore, app: str, request: EditRequest) -> Change:
    if not request.rows:
        return Change(request.sql)
    data = store.get(key := keys.edit_rows(app, request.id))
    if xxh3_128_hexdigest(data) != request.rows:
        raise codec.corruption_error(key, f"does not match the checksum {request.rows} of edit {request.id}")
    source, tables = pa.BufferReader(data), list[pa.Table]()
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            tables.append(stream.read_all())
    rows, *records = tables
    return Change(rows=rows, records={table.schema.metadata[_SINK].decode(): table for table in records})


def _encode(rows: pa.Table, records: Mapping[str, pa.Table] | None = None) -> bytes:
    """Encode rows, followed by the records of each sink, each as an Arrow stream."""
    data = io.BytesIO()
    named = (table.replace_schema_metadata({_SINK: name}) for name, table in (records or {}).items())
    for table in (rows, *named):
        with pa.ipc.new_stream(data, table.schema) as stream:
            stream.write_table(table)
    return data.getvalue()


def _carry_out(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    request: EditRequest,
    change: Change,
    patience_s: float,
    on_wait: Callable[[str], None],
    send: SendRecords | None = None,
) -> EditDone:
    stage, deadline, waited_for = request.stage, runtime.monotonic() + patience_s, ""
    while True:
        head = newest_active_cut(store, app, stage).stages[stage]
        if (done := find_edit_version(store, request, head)) is not None:
            finish_edit(store, app, request, done)
            return EditDone(app, stage, _changes_of(store, cache, done), done.version, waited_for)
        if not (runner := runner_of(head, live_heartbeats(store, app, instants.now_ms()))):
            return _edit_in_process(store, cache, request, head, change, send)
        if not waited_for:
            waited_for = runner
            on_wait(runner)
        answer = EDITS.find(store, request.id, app)
        if answer is not None and answer.error:
            withdraw_edit(store, app, request)
            kind = Outdated if answer.outdated else Refused
            raise kind(f"the runner could not apply the {request.kind}: {answer.error}", hint="nothing was changed")
        if runtime.monotonic() > deadline:
            withdraw_edit(store, app, request)
            raise Refused(
                f"runner {runner} did not apply the {request.kind} of {app}/{stage} within {patience_s:g} s; it was "
                "withdrawn",
                hint=f"`slackwater status {app}` shows if it is alive; --timeout waits longer",
            )
        runtime.sleep(_POLL_S)


def finish_edit(store: ObjectStore, app: str, request: EditRequest, manifest: Manifest) -> None:
    """Record a committed edit in the audit log, once, and delete the request."""
    versions = {manifest.stage: (manifest.version - 1, manifest.version)}
    detail, since_ms = f"{manifest.stage} v{manifest.version}: {request.edit.what}", request.created_ms
    why = request.edit.message
    record_operation_once(store, app, request.kind, detail, request.edit.by, versions, since_ms=since_ms, message=why)
    withdraw_edit(store, app, request)


def _changes_of(store: ObjectStore, cache: SstCache, done: Manifest) -> KeyChanges:
    previous = history.read(store, done.app, done.stage, done.version - 1)
    sides = (TableSide(store, cache, require_table(manifest), manifest, done.clock_ms) for manifest in (previous, done))
    return diff_table(done.stage, *sides).changes


def _edit_in_process(
    store: ObjectStore, cache: SstCache, request: EditRequest, seen: Manifest, change: Change, send: SendRecords | None
) -> EditDone:
    app, stage = seen.app, seen.stage
    result: EditEffect | None = None

    def still_to_do(head: Manifest) -> bool:
        nonlocal result
        if find_edit_version(store, request, head) is not None:
            return False
        check_base(store, request, head)
        result = compute_edit(store, cache, newest_active_cut(store, app, stage, head), stage, change, request.edit)
        if result is not None and send is not None:
            result = dataclasses.replace(result, sinks=send(head, change.records))
        return result is not None

    def update(draft: Manifest) -> Manifest:
        assert result is not None  # noqa: S101  `still_to_do` was true
        return result.apply_to(draft)

    change_once = Amendment(request.kind, update, requires=still_to_do)
    try:
        newest = amend(store, (app, stage), change_once, by=request.edit.by, now_ms=instants.now_ms).manifest
    except Outdated:
        withdraw_edit(store, app, request)
        raise
    if (done := find_edit_version(store, request, newest)) is None:
        withdraw_edit(store, app, request)
        return EditDone(app, stage, None)
    finish_edit(store, app, request, done)
    return EditDone(app, stage, result.changes if result is not None else None, done.version)
