"""Routes of bisect, verify, replay, why, impact, reconcile, why-not and snapshot requests, and `/me`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

from ...client.app import StoredApp
from ...client.declared.questions import (
    ImpactOptions,
    ReconcileOptions,
    SearchOptions,
    VerifyOptions,
    WhyNotOptions,
    WhyOptions,
)
from ...client.explain.result import explanation_data, impact_data
from ...client.reconcile.result import absence_data, reconciliation_data
from ...client.show.programs import replay_result
from ...client.show.shown import Result
from ...client.show.status import verification_result
from ...errors import SlackwaterError
from ...snapshot.bisect.verdict import Evaluation
from ...snapshot.query.key_text import parse_key_text
from ...snapshot.take.audit_log import because
from ..declare import (
    AppName,
    Key,
    KeyOrNone,
    Limit,
    Message,
    Moment,
    Record,
    SnapshotName,
    Stage,
    Table,
    TableRef,
    Version,
    endpoint,
)
from ..errors import problem
from ..service import Call, event
from .finding import (
    bisect_and_explain,
    evaluation_data,
    explain_absence,
    explain_row,
    limit_result,
    reconcile_tables,
    replay_batch,
    trace_impact,
    verify_moment,
)
from .searching import check_one_predicate

_log = logging.getLogger(__name__)
_SNAPSHOT_TIMEOUT_S = 30.0


@endpoint("/me", verb=None)
def me(call: Call) -> object:
    """Return the caller's `name` (empty without a token), verbs, apps and tables (`*`: all).

    `hidden` describes what the caller may not read.
    """
    grant = call.grant
    may = {name: sorted(getattr(grant, name)) for name in ("verbs", "apps", "tables")}
    return {"name": grant.name} | may | {"hidden": grant.hidden}


@endpoint("/apps/{app}/bisect", verb="bisect", methods=("POST",), streams=True)
async def bisect(
    call: Call, app: AppName, limit: Limit = 1_000, **wrong: Unpack[SearchOptions]
) -> AsyncIterator[bytes]:
    """Server-sent events: `probe` for each evaluated moment, then `found` with the first bad commit, or `error`.

    `found` is the document of `slackwater bisect --json`, with at most `limit` rows and keys. A disconnect of the
    client cancels the search.
    """
    check_one_predicate(wrong)
    stored_app = await call.app_with_all_tables(app, "a bisect")
    call.service.check_not_busy()
    return _events(call, stored_app, wrong, limit)


async def _events(call: Call, stored_app: StoredApp, wrong: SearchOptions, limit: int) -> AsyncIterator[bytes]:
    service, steps = call.service, asyncio.Queue[Evaluation | None]()
    searching = asyncio.create_task(bisect_and_explain(call, stored_app, wrong, steps.put_nowait))
    searching.add_done_callback(lambda _done: steps.put_nowait(None))
    try:
        while (step := await steps.get()) is not None:
            yield event("probe", evaluation_data(step))
        yield event("found", await service.in_thread(lambda: limit_result(searching.result(), limit)))
    except Exception as error:
        if not isinstance(error, SlackwaterError):
            _log.exception("bisect")
        yield event("error", problem(error, service.client.root))
    finally:
        searching.cancel()


@endpoint("/apps/{app}/at/{ref}/verify", is_long=True)
async def verify(call: Call, app: AppName, ref: Moment, stage: Stage = "", **options: Unpack[VerifyOptions]) -> Result:
    """Verify that a moment is consistent, complete and undamaged, from the objects in the store."""
    stored_app = await call.app_with_all_tables(app, "a verification")
    return verification_result(await verify_moment(call, stored_app, ref, options, stage))


@endpoint("/apps/{app}/replay", verb="bisect", methods=("POST",), is_long=True)
async def replay(
    call: Call, app: AppName, stage: Stage, version: Version, key: KeyOrNone = "", limit: Limit = 1_000
) -> object:
    """Replay a batch with the server's copy of the program, and compare the result with the committed batch.

    Returns at most `limit` differing keys.
    """
    stored_app = await call.app_with_all_tables(app, "a replay")
    comparison, notes = await replay_batch(
        call, stored_app, stage, version, lambda declared: tuple(parse_key_text(stage, declared, key)) if key else ()
    )
    channels, parts = (
        tuple(replace(output, missing=output.missing[:limit], added=output.added[:limit]) for output in outputs)
        for outputs in (comparison.channels, comparison.parts)
    )
    keys = comparison.different.head(limit) if comparison.different is not None else None
    document: Any = replay_result(replace(comparison, keys=keys, channels=channels, parts=parts), None, None).data
    return {**document, "same": comparison.same, "notes": notes}


@endpoint("/apps/{app}/at/{ref}/tables/{table}/why", verb="bisect", methods=("POST",), is_long=True)
async def why(
    call: Call, app: AppName, ref: Moment, table: Table, key: Key, **options: Unpack[WhyOptions]
) -> dict[str, Any]:
    """Return the records that made a row, version by version, by replays with the server's copy of the program."""
    stored_app = await call.app_with_all_tables(app, "the records of a row")
    explained, notes = await explain_row(
        call, stored_app, table, ref, options, lambda declared: tuple(parse_key_text(table, declared, key))
    )
    return explanation_data(explained) | {"notes": notes}


@endpoint("/apps/{app}/impact", verb="bisect", methods=("POST",), is_long=True)
async def impact(call: Call, app: AppName, record: Record, **options: Unpack[ImpactOptions]) -> dict[str, Any]:
    """Return everything that a record reached, by replays with the server's copy of the program."""
    stored_app = await call.app_with_all_tables(app, "what a record reached")
    reached, notes = await trace_impact(call, stored_app, record, options)
    return impact_data(reached) | {"notes": notes}


@endpoint("/apps/{app}/at/{ref}/tables/{table}/reconcile", verb="bisect", methods=("POST",), is_long=True)
async def reconcile(
    call: Call,
    app: AppName,
    ref: Moment,
    table: Table,
    theirs: TableRef,
    limit: Limit = 50,
    **options: Unpack[ReconcileOptions],
) -> dict[str, Any]:
    """Compare a table with another app's, or with another moment, and explain at most `limit` keys that differ."""
    stored_app = await call.app_with_all_tables(app, "a reconciliation")
    compared, notes = await reconcile_tables(call, stored_app, table, ref, theirs, limit, options)
    return reconciliation_data(compared) | {"notes": notes}


@endpoint("/apps/{app}/at/{ref}/tables/{table}/why-not", verb="bisect", methods=("POST",), is_long=True)
async def why_not(
    call: Call, app: AppName, ref: Moment, table: Table, key: Key, **options: Unpack[WhyNotOptions]
) -> dict[str, Any]:
    """Return the reasons why records are not in a row: late, rejected, filtered, not read yet, and so on."""
    stored_app = await call.app_with_all_tables(app, "the records of a row")
    absence, notes = await explain_absence(
        call, stored_app, table, ref, options, lambda declared: tuple(parse_key_text(table, declared, key))
    )
    return absence_data(absence) | {"notes": notes}


@endpoint("/apps/{app}/snapshots", verb="snapshot", methods=("POST",))
def snapshot(call: Call, app: AppName, name: SnapshotName = "", message: Message = "") -> Result:
    """Request a snapshot of an app. If the app is not running, its next runner takes the snapshot."""
    call.grant.check_all_tables("a snapshot")
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with because(message):
        return call.app(app).take_snapshot(
            name, instant=False, timeout_s=_SNAPSHOT_TIMEOUT_S, wait=False, on_poll=lambda _look: None
        )
