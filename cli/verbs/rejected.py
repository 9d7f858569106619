"""`slackwater rejected`: the records that stages left out, and putting them through again."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import instants
from ...errors import Usage
from ...results import formats
from ...results.document import Block, Table
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.rejected.listing import RejectedRecord, RejectedRecords

_SHOWN = 60
"""Characters of an error that a table has room for."""


@verb(
    "slackwater rejected flights",
    "slackwater rejected flights --stage legs --limit 0 --json | jq '.records[].stack'",
    "slackwater rejected flights --retry --dry-run",
    "slackwater rejected flights --retry      # once the program, or what it reads, is mended",
)
def rejected(
    session: Session,
    app_name: options.App,
    stage: str | None = options.option("STAGE", "Only those of this stage."),
    limit: int = options.option("N", "Show this many; 0 for all.", 20, min=0),
    every: bool = options.flag("--all", "Also those that were retried."),
    retry: bool = options.flag("--retry", "Have those that wait put through the current program."),
    dry_run: options.DryRun = False,
) -> None:
    """Show the records that made a batch fail and were left out of it, newest first, each with its error.

    They are in the table STAGE_rejected, beside that of the stage, with payload, headers and stack. With --retry, the
    runner puts those that wait through its program, between two batches; when none runs, the next one does, first of
    all. Each that passes is marked as retried in the same commit; one that fails again stays.
    """
    if dry_run and not retry:
        raise Usage("--dry-run goes with --retry")
    if retry:
        _ask(session, app_name, stage or "", dry_run=dry_run)
        return
    from ...snapshot.rejected.listing import rejected as list_rejected

    cut, _ = session.cut_around(app_name, "read")
    with closing(session.settings.open_cache()) as cache:
        found = list_rejected(session.store, cache, cut, stage=stage or "", limit=limit, every=every)
    session.show(_data(found), *_shown(found))
    if limit and len(found.records) == limit:
        session.note(f"the newest {formats.plural(limit, 'record')}; --limit 0 shows all")


def _ask(session: Session, app_name: str, stage: str, *, dry_run: bool) -> None:
    from ...snapshot.rejected import retries
    from ...snapshot.status import roster
    from ...snapshot.take.audit_log import whoami

    now_ms = instants.now_ms()
    waiting = retries.waiting(session.store, app_name, stage)
    running = {name for beat in roster.beats(session.store, app_name, now_ms) for name in beat.stages}
    if not dry_run:
        for name in waiting:
            retries.ask(session.store, app_name, name, by=whoami(), now_ms=now_ms)
    data = {"app": app_name, "dry_run": dry_run, "waiting": waiting, "running": sorted(running & waiting.keys())}
    session.show(data, *_asked(app_name, waiting, running, dry_run=dry_run))


def _asked(app_name: str, waiting: dict[str, int], running: set[str], *, dry_run: bool) -> Iterator[Block]:
    if not waiting:
        yield f"no rejected record of {app_name} waits to be retried"
    for name, count in waiting.items():
        who = "the runner puts them through within seconds" if name in running else "the next `slackwater run` does it"
        said = "would be put through again" if dry_run else "asked for"
        yield f"{app_name}/{name}: {formats.plural(count, 'rejected record')} {said}; {who}"


def _data(found: "RejectedRecords") -> dict[str, object]:
    from ...results import values

    return {
        "app": found.app,
        "total": dict(found.total),
        "waiting": dict(found.waiting),
        "records": values.stream(map(asdict, found.records)),
    }


def _shown(found: "RejectedRecords") -> Iterator[Block]:
    if not found.records:
        yield (
            f"no rejected record of {found.app} waits" if found.total else f"no stage of {found.app} rejected a record"
        )
        return
    headings = ("stage", "record", "rejected", ">attempts", "error", "")
    yield Table.of(headings, map(_row, found.records))
    yield ""
    yield "; ".join(
        f"{name}: {formats.plural(found.waiting[name], 'record')} waiting of {total:,}"
        for name, total in found.total.items()
    )


def _row(each: "RejectedRecord") -> tuple[str, ...]:
    sentence = each.message.partition("\n")[0]
    short = sentence if len(sentence) <= _SHOWN else f"{sentence[:_SHOWN]}…"
    done = "waits" if each.retried is None else f"retried by v{each.retried}"
    return each.stage, each.address, instants.when(each.rejected_ms), str(each.attempts), f"{each.error}: {short}", done
