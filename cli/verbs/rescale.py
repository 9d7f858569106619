"""`slackwater rescale`: another number of state partitions for a stage's table."""

from typing import TYPE_CHECKING

from ... import instants
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    pass


@verb(
    "slackwater rescale flights/carriers --partitions 8", "slackwater rescale flights/aircraft --partitions 2 --dry-run"
)
def rescale(
    session: Session,
    stage: options.Stage,
    partitions: int = options.option("N", "State partitions from now on.", ..., min=1),
    dry_run: options.DryRun = False,
) -> None:
    """Change the number of state partitions of a stage's table.

    As many tasks then work on the state at once. One commit, however large the table: no state is copied, and
    compaction brings it to the new partitions as it merges. A runner of the stage stops; started again, it goes on with
    the new number, whatever partitions= says in the code.
    """
    from ...results.kept import rescaled
    from ...snapshot.maintain.rescale import rescale as change
    from ...snapshot.take.audit_log import whoami

    names, now_ms = options.names_of_stage(stage), instants.now_ms()
    done = change(session.store, *names, partitions, by=whoami(), now_ms=now_ms, dry_run=dry_run)
    session.show(rescaled(done, stage, dry_run=dry_run))
