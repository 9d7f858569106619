"""`slackwater edit`: asking for it, and having it done, by the runner that has the stage or in this process.

Where no runner has it, the edit's version follows the newest; where another one came first, it is made anew, of that.
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from ulid import ULID
from xxhash import xxh3_128_hexdigest

from ...common import instants
from ...errors import Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import is_retired
from ...store.versions.manifest import Edit, Manifest
from ..cut.graph import Cut
from ..cut.moments import heads_of, stages_of
from ..cut.stored import notify
from ..diff.key_changes import KeyChanges
from ..diff.moments import table_diff
from ..diff.stored_rows import TableSide
from ..query.row_source import RowSource
from ..take.audit_log import find_operation, record_once, why
from ..take.taking import REPEAT_MS
from ..under_way.edit_request import EDITS, EditRequest, done_by, withdraw
from ..under_way.exclusion import HERE, Intent, check_exclusion
from ..under_way.runners import beats, runner_of
from ..under_way.signs import UnderWay
from .edited import Change, Edited, edited, rows_of, table_of

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class EditDone:
    """What an edit did, or would do."""

    app: str
    stage: str
    changes: KeyChanges | None
    """The rows that change; None where none does, and where a version says."""
    version: int = 0
    """The one that did it; 0 when nothing was to be done, or was only looked at."""
    runner: str = ""
    """Who did it, as host:pid; empty where the verb did."""
    already: bool = False
    """Whether an earlier call had done it, a short while ago."""


def edit(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    stage: str,
    what: str,
    *,
    sql: str = "",
    source: RowSource | None = None,
    by: str,
    patience_s: float = 60,
    again: bool = False,
    dry_run: bool = False,
    on_wait: Callable[[str], None] = lambda _runner: None,
) -> EditDone:
    """Change rows of a stage's table by hand: what an SQL statement changes, or rows of a source that are to be there.

    `what` says in a line what is done. Where a runner has the stage, `on_wait` is told of it, and it does the edit
    between two batches, within `patience_s`. A call that was interrupted is finished by the same call: the same
    statement of the same person within ten minutes is done once, unless it is to be done `again`. Raises as
    `StoredApp.edit`.
    """
    if bool(sql) == (source is not None):
        raise Usage("an edit is a statement, or rows; expected one of the two", hint="give --sql TEXT or --rows FILE")
    cut = newest(store, app, stage)
    head = cut.stages[stage]
    rows = rows_of(source, head) if source is not None else None
    done = Edit(str(ULID()), by, what, why())
    data = _encoded(rows) if rows is not None else b""
    checksum = xxh3_128_hexdigest(data) if data else ""
    asked = EditRequest(done, stage, head.version, instants.now_ms(), sql, checksum)
    check_exclusion(store, app, Intent.EDIT, *HERE, dry_run=dry_run)
    earlier = next((each for each in EDITS.all(store, app) if each.is_like(asked) and not each.error), None)
    if sql and not (again or dry_run) and (version := _done_lately(store, app, asked)):
        if earlier is not None and (finished := done_by(store, earlier, head)) is not None:
            # The call before was killed after its last entry in the log of operations.
            finish(store, app, earlier, finished)
        return EditDone(app, stage, None, version, already=True)
    if earlier is None or dry_run:
        looked = edited(store, cache, cut, stage, Change(sql, rows), done, writes=False)
        if looked is None or dry_run:
            return EditDone(app, stage, looked.changes if looked is not None else None)
        if rows is not None:
            store.put(keys.edit_rows(app, asked.id), data)
        EDITS.put(store, asked, app)
        try:
            # Who forgets keys looks for requests once its note is there.
            check_exclusion(store, app, Intent.EDIT, UnderWay.FORGETTING)
        except Refused:
            withdraw(store, app, asked)
            raise
        notify(store, app)
    request = earlier or asked
    return _carried_out(store, cache, app, request, Change(sql, rows), by, patience_s, on_wait)


def _done_lately(store: ObjectStore, app: str, asked: EditRequest) -> int:
    """The version that did the same for the same person a short while ago, 0 for none."""
    since_ms, what, stage = asked.created_ms - REPEAT_MS, f": {asked.edit.what}", asked.stage
    found = find_operation(
        store, app, "edit", lambda detail: detail.startswith(f"{stage} v") and detail.endswith(what), since_ms=since_ms
    )
    return found.after.get(stage, 0) if found is not None and found.by == asked.edit.by else 0


def newest(store: ObjectStore, app: str, stage: str, head: Manifest | None = None) -> Cut:
    """What an edit is made of: the newest version of every stage, of this one `head` where it is given.

    Raises `NotFound` where there is no such app or stage, and `Refused` where that is retired.
    """
    heads = heads_of(store, app, stages_of(store, app, stage)) | ({stage: head} if head is not None else {})
    if heads[stage].retired:
        raise is_retired(heads[stage])
    there = {name: head for name, head in heads.items() if not head.retired}
    return Cut(app, there, seen_ms=instants.now_ms())


def change_of(store: ObjectStore, app: str, request: EditRequest) -> Change:
    """What a request asks for. Raises `Refused` where its rows are not those that were asked for."""
    if not request.rows:
        return Change(request.sql)
    data = store.get(keys.edit_rows(app, request.id))
    if xxh3_128_hexdigest(data) != request.rows:
        raise Refused("the rows of the edit are not those that were asked for: they are damaged")
    with pa.ipc.open_stream(data) as stream:
        return Change(rows=stream.read_all())


def _encoded(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _carried_out(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    request: EditRequest,
    change: Change,
    by: str,
    patience_s: float,
    on_wait: Callable[[str], None],
) -> EditDone:
    stage, deadline, told = request.stage, time.monotonic() + patience_s, ""
    while True:
        head = newest(store, app, stage).stages[stage]
        if (done := done_by(store, request, head)) is not None:
            finish(store, app, request, done)
            return EditDone(app, stage, _changed_by(store, cache, done), done.version, told)
        if not (runner := runner_of(head, beats(store, app, instants.now_ms()))):
            return _here(store, cache, app, request, change, by)
        if not told:
            told = runner
            on_wait(runner)
        answer = EDITS.find(store, request.id, app)
        if answer is not None and answer.error:
            withdraw(store, app, request)
            raise Refused(f"the runner could not do the edit: {answer.error}", hint="nothing was changed")
        if time.monotonic() > deadline:
            withdraw(store, app, request)
            raise Refused(
                f"{runner} has {app}/{stage} and did not do the edit within {patience_s:g} s: it was withdrawn",
                hint=f"`slackwater status {app}` shows whether it runs; --timeout waits for longer",
            )
        time.sleep(_POLL_S)


def finish(store: ObjectStore, app: str, request: EditRequest, done: Manifest) -> None:
    """Tell of what was done in the log of operations, once, and take the request away."""
    versions = {done.stage: (done.version - 1, done.version)}
    detail, since_ms = f"{done.stage} v{done.version}: {request.edit.what}", request.created_ms
    why = request.edit.message
    record_once(store, app, "edit", detail, request.edit.by, versions, since_ms=since_ms, message=why)
    withdraw(store, app, request)


def _changed_by(store: ObjectStore, cache: SstCache, done: Manifest) -> KeyChanges:
    """The rows that a version changed."""
    before = history.read(store, done.app, done.stage, done.version - 1)
    sides = (TableSide(store, cache, table_of(each), each, done.clock_ms) for each in (before, done))
    return table_diff(done.stage, *sides).changes


def _here(store: ObjectStore, cache: SstCache, app: str, request: EditRequest, change: Change, by: str) -> EditDone:
    """Do it in this process: no runner has the stage."""
    stage = request.stage
    made: Edited | None = None
    done: Manifest | None = None

    def still_to_do(head: Manifest) -> bool:
        nonlocal made, done
        if (done := done_by(store, request, head)) is not None:
            return False
        made = edited(store, cache, newest(store, app, stage, head), stage, change, request.edit)
        return made is not None

    def update(draft: Manifest) -> Manifest:
        assert made is not None  # noqa: S101  else nothing is left to do
        return made.onto(draft)

    committed = amend(
        store, (app, stage), Amendment("edit", update, requires=still_to_do), by=by, now_ms=instants.now_ms
    )
    done = committed.manifest if committed.changed else done
    if done is None:
        withdraw(store, app, request)
        return EditDone(app, stage, None)
    finish(store, app, request, done)
    return EditDone(app, stage, made.changes if made is not None else None, done.version)
