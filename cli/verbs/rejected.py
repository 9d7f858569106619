"""`slackwater rejected`: the records that stages left out, and putting them through again."""

from contextlib import closing
from typing import TYPE_CHECKING

from ... import instants
from ...errors import Usage
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    pass


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
    from ...results.rows import rejected as shown
    from ...snapshot.rejected.listing import rejected as list_rejected

    cut, _ = session.cut_around(app_name, "read")
    with closing(session.settings.open_cache()) as cache:
        found = list_rejected(session.store, cache, cut, stage=stage or "", limit=limit, every=every)
    session.show(shown(found, limit))


def _ask(session: Session, app_name: str, stage: str, *, dry_run: bool) -> None:
    from ...results.rows import retries as shown
    from ...snapshot.rejected import retries
    from ...snapshot.status import roster
    from ...snapshot.take.audit_log import whoami

    now_ms = instants.now_ms()
    waiting = retries.waiting(session.store, app_name, stage)
    running = {name for beat in roster.beats(session.store, app_name, now_ms) for name in beat.stages}
    if not dry_run:
        for name in waiting:
            retries.ask(session.store, app_name, name, by=whoami(), now_ms=now_ms)
    session.show(shown(app_name, waiting, running, dry_run=dry_run))
