"""`slackwater retire`: an app goes on without a stage that is gone from its program."""

from typing import TYPE_CHECKING

from ... import instants
from ...errors import Unavailable
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...settings import Settings


@verb("slackwater retire flights/carriers --dry-run", "slackwater retire flights/carriers", kafka=True)
def retire(session: Session, stage: options.Stage, dry_run: options.DryRun = False) -> None:
    """Let an app go on without a stage that is gone from its program.

    From then on snapshots do not wait for it, moments of the app leave it out, and garbage collection keeps nothing
    for it to read. Its history and its table stay. A runner that has the stage stops; a program that has it brings it
    back, and it goes on where it stopped.
    """
    from ...results.kept import retired
    from ...snapshot.maintain.retire import retire as change
    from ...snapshot.take.audit_log import whoami

    names = options.names_of_stage(stage)
    done = change(session.store, *names, by=whoami(), now_ms=instants.now_ms(), dry_run=dry_run)
    session.show(retired(done, session.flags, dry_run=dry_run))
    if not dry_run and (trouble := _forget_group(session.settings, *names)):
        session.note(trouble)


def _forget_group(settings: "Settings", app_name: str, stage: str) -> str:
    """Remove the stage's consumer group, whose lag would only grow; returns why it is still there, if it is."""
    if not settings.brokers:
        return ""
    from ...pipeline.kafka.consumer_groups import delete_groups, group_of

    try:
        delete_groups(settings.kafka(), [group_of(app_name, stage)])
    except Unavailable as error:
        return f"the consumer group {group_of(app_name, stage)} is still there: {error.message}"
    return ""
