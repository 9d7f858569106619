"""What a request may have done, a few lines a route: a search, a snapshot; and what whoever asks may."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...errors import SlackwaterError, TooMuch
from ...moments.take.audit_log import because
from ...results import verdict as shown
from ...results.shown import Result, encoded
from ...search.verdict import Evaluation, Verdict
from ..declare import AppName, Bad, Condition, Edge, Good, Limit, Message, OfTable, Predicate, SnapshotName, endpoint
from ..errors import problem
from ..service import Call
from .searching import SearchAsked, Searcher

_log = logging.getLogger(__name__)
_TAKEN_S = 30.0
"""How long a snapshot is waited for that was asked for before."""


@endpoint("/me", verb=None)
def me(asked: Call) -> object:
    """What whoever asks may do: verbs, apps and tables, `*` for all; the name is empty on this machine."""
    grant = asked.grant
    return {"name": grant.name} | {name: sorted(getattr(grant, name)) for name in ("verbs", "apps", "tables")}


@endpoint("/apps/{app}/bisect", verb="bisect", methods=("POST",), streams=True)
async def bisect(
    asked: Call,
    app: AppName,
    where: Predicate = "",
    check: Condition = "",
    table: OfTable = "",
    good: Good = "",
    bad: Bad = "",
    edge: Edge = "",
    limit: Limit = 1_000,
) -> AsyncIterator[bytes]:
    """Server-sent events: `probe` for each moment that is looked at, then `found`, the first bad commit, or `error`.

    What is found is the document of `slackwater bisect --json`, with at most `limit` rows and keys. Whoever goes away
    ends the search.
    """
    asked.grant.check_all_tables("a search through the commits of an app")
    wrong = SearchAsked(where, check, table, good, bad, edge)
    of = await asked.service.in_thread(lambda: asked.app(app))
    service, loop = asked.service, asyncio.get_running_loop()
    service.check_not_busy()
    searcher = Searcher(service.statements, asked.bounds(of.name), service.options.sql_rows)
    steps = asyncio.Queue[Evaluation | None]()

    async def searched() -> Verdict:
        with service.taking_long():  # until the thread has ended, whoever waits for it
            return await service.in_thread(
                lambda: searcher.search(of, wrong, lambda step: loop.call_soon_threadsafe(steps.put_nowait, step))
            )

    def done(found: asyncio.Task[Verdict]) -> None:
        if not found.cancelled():
            found.exception()  # is nobody's, where nobody waits for it any more
        steps.put_nowait(None)

    async def events() -> AsyncIterator[bytes]:
        found = asyncio.create_task(searched())
        found.add_done_callback(done)
        until_s = loop.time() + service.options.long_s
        try:
            while (step := await asyncio.wait_for(steps.get(), until_s - loop.time())) is not None:
                yield _event("probe", probe(step))
            yield _event("found", await service.in_thread(lambda: limited(found.result(), limit)))
        except TimeoutError:
            took = f"the search took more than {service.options.long_s:g} s"
            yield _event("error", problem(TooMuch(took, hint="narrow it with good and bad")))
        except Exception as error:
            if not isinstance(error, SlackwaterError):
                _log.exception("bisect")
            yield _event("error", problem(error, service.client.root))
        finally:
            searcher.stop()

    return events()


def _event(name: str, data: object) -> bytes:
    # Rows are encoded a line each, and a line break would end the data.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(data).replace(b"\n", b""))


def probe(step: Evaluation) -> dict[str, Any]:
    """A moment that was looked at."""
    about = {"ref": step.ref, "versions": step.cut.versions, "time_ms": step.cut.time_ms, "outcome": step.answer}
    return about | {"why": step.why, "took_ms": step.took_ms, "number": step.number, "left": step.total - step.number}


def limited(found: Verdict, limit: int) -> dict[str, Any]:
    """The document of a verdict, with so many rows and keys at most; `cut_off` says whether there are more."""
    keys = found.keys.head(limit) if found.keys is not None else None
    less = replace(found, rows=found.rows.slice(0, limit), keys=keys)
    data: Any = shown.verdict(less, None, None, "", "", "").data
    is_cut = found.more_rows or found.rows.num_rows > limit or len(found.keys or ()) > limit
    return {**data, "cut_off": is_cut}


@endpoint("/apps/{app}/snapshots", verb="snapshot", methods=("POST",))
def snapshot(asked: Call, app: AppName, name: SnapshotName = "", message: Message = "") -> Result:
    """Ask a running app for a snapshot; of one that does not run its next runner takes it."""
    asked.grant.check_all_tables("a snapshot")
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with because(message):
        return asked.app(app).take(name, instant=False, timeout_s=_TAKEN_S, wait=False, on_look=lambda _look: None)
