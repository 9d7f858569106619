"""What a request may have done, a few lines a route: a search, a snapshot; and what whoever asks may."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

from ...client.app import StoredApp
from ...client.declared.questions import SearchOptions, VerifyOptions
from ...client.show.programs import replayed
from ...client.show.shown import Result
from ...client.show.status import verification
from ...errors import SlackwaterError
from ...snapshot.bisect.verdict import Evaluation
from ...snapshot.query.key_text import key_of
from ...snapshot.take.audit_log import because
from ..declare import AppName, KeyOrNone, Limit, Message, Moment, SnapshotName, Stage, Version, endpoint
from ..errors import problem
from ..service import Call, event
from .finding import find, limited, probe, prove, run_again
from .searching import check_asked

_log = logging.getLogger(__name__)
_TAKEN_S = 30.0
"""How long a snapshot is waited for that was asked for before."""


@endpoint("/me", verb=None)
def me(asked: Call) -> object:
    """What whoever asks may do: verbs, apps and tables, `*` for all, and what is `hidden`; no name on this machine."""
    grant = asked.grant
    may = {name: sorted(getattr(grant, name)) for name in ("verbs", "apps", "tables")}
    return {"name": grant.name} | may | {"hidden": grant.hidden}


@endpoint("/apps/{app}/bisect", verb="bisect", methods=("POST",), streams=True)
async def bisect(
    asked: Call, app: AppName, limit: Limit = 1_000, **wrong: Unpack[SearchOptions]
) -> AsyncIterator[bytes]:
    """Server-sent events: `probe` for each moment that is looked at, then `found`, the first bad commit, or `error`.

    What is found is the document of `slackwater bisect --json`, with at most `limit` rows and keys. Whoever goes away
    ends the search.
    """
    check_asked(wrong)
    of = await asked.whole_app(app, "a search through the commits of an app")
    asked.service.check_not_busy()
    return _events(asked, of, wrong, limit)


async def _events(asked: Call, of: StoredApp, wrong: SearchOptions, limit: int) -> AsyncIterator[bytes]:
    service, steps = asked.service, asyncio.Queue[Evaluation | None]()
    searching = asyncio.create_task(find(asked, of, wrong, steps.put_nowait))
    searching.add_done_callback(lambda _done: steps.put_nowait(None))
    try:
        while (step := await steps.get()) is not None:
            yield event("probe", probe(step))
        yield event("found", await service.in_thread(lambda: limited(searching.result(), limit)))
    except Exception as error:
        if not isinstance(error, SlackwaterError):
            _log.exception("bisect")
        yield event("error", problem(error, service.client.root))
    finally:
        searching.cancel()


@endpoint("/apps/{app}/at/{ref}/verify", is_long=True)
async def verify(asked: Call, app: AppName, ref: Moment, stage: Stage = "", **options: Unpack[VerifyOptions]) -> Result:
    """Whether a moment is consistent, complete and undamaged, as far as what is stored proves it."""
    of = await asked.whole_app(app, "a proof")
    return verification(await prove(asked, of, ref, options, stage))


@endpoint("/apps/{app}/replay", verb="bisect", methods=("POST",), is_long=True)
async def replay(
    asked: Call, app: AppName, stage: Stage, version: Version, key: KeyOrNone = "", limit: Limit = 1_000
) -> object:
    """A batch, run again with the program that the server has, beside what was committed: `limit` keys that differ."""
    of = await asked.whole_app(app, "a replay")
    found, notes = await run_again(
        asked, of, stage, version, lambda declared: tuple(key_of(stage, declared, key)) if key else ()
    )
    some = [replace(each, missing=each.missing[:limit], added=each.added[:limit]) for each in found.channels]
    keys = found.different.head(limit) if found.different is not None else None
    document: Any = replayed(replace(found, keys=keys, channels=tuple(some)), None, None).data
    return {**document, "same": found.same, "notes": notes}


@endpoint("/apps/{app}/snapshots", verb="snapshot", methods=("POST",))
def snapshot(asked: Call, app: AppName, name: SnapshotName = "", message: Message = "") -> Result:
    """Ask a running app for a snapshot; of one that does not run its next runner takes it."""
    asked.grant.check_all_tables("a snapshot")
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with because(message):
        return asked.app(app).take(name, instant=False, timeout_s=_TAKEN_S, wait=False, on_look=lambda _look: None)
