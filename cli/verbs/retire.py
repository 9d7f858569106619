"""`slackwater retire`: an app goes on without a stage that is gone from its program."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import instants
from ...errors import Unavailable
from ...results import formats
from ...results.document import Block
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...settings import Settings
    from ...snapshot.maintain.retire import Retired


@verb("slackwater retire flights/carriers --dry-run", "slackwater retire flights/carriers", kafka=True)
def retire(session: Session, stage: options.Stage, dry_run: options.DryRun = False) -> None:
    """Let an app go on without a stage that is gone from its program.

    From then on snapshots do not wait for it, moments of the app leave it out, and garbage collection keeps nothing
    for it to read. Its history and its table stay. A runner that has the stage stops; a program that has it brings it
    back, and it goes on where it stopped.
    """
    from ...snapshot.maintain.retire import retire as change
    from ...snapshot.take.audit_log import whoami

    names = options.names_of_stage(stage)
    done = change(session.store, *names, by=whoami(), now_ms=instants.now_ms(), dry_run=dry_run)
    session.show({**asdict(done), "dry_run": dry_run}, *_words(done, dry_run, session.flags))
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


def _words(done: "Retired", dry_run: bool, flags: str) -> Iterator[Block]:
    stage = f"{done.app}/{done.stage}"
    if done.already:
        yield f"{stage} is retired since v{done.version}: done already"
        return
    last = f"it last committed {instants.when(done.last_ms)}, by {done.last_by or 'nobody known'}"
    if dry_run:
        yield f"would retire {stage} with v{done.version}"
        yield f"{last}; a runner that has it would stop"
    else:
        yield f"retired {stage} with v{done.version}; its history stays, and so does its table" + (
            f" ({formats.plural(done.ssts, 'SST')})" if done.ssts else ""
        )
        yield f"{last}; a runner that has it stops within seconds, with all stages that it runs"
    if done.snapshots:
        yield f"snapshots under way do not wait for it {'then' if dry_run else 'any more'}: {', '.join(done.snapshots)}"
    for sender, versions in done.unread.items():
        yield f"it has not read {formats.plural(versions, 'version')} of {sender}, which gc keeps no longer for it"
    if not dry_run:
        yield f'see its last state: slackwater query {stage}{flags} "SELECT …"; a program that has it brings it back'
