"""`slackwater rescale`: another number of state partitions for a stage's table."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import instants
from ...results import formats
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.maintain.rescale import Rescaled


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
    from ...snapshot.maintain.rescale import rescale as change
    from ...snapshot.take.audit_log import whoami

    names, now_ms = options.names_of_stage(stage), instants.now_ms()
    done = change(session.store, *names, partitions, by=whoami(), now_ms=now_ms, dry_run=dry_run)
    session.show({**asdict(done), "dry_run": dry_run}, *_words(done, stage, dry_run))


def _words(done: "Rescaled", stage: str, dry_run: bool) -> tuple[str, ...]:
    if done.before == done.partitions:
        return (f"done already: {stage} has {formats.plural(done.before, 'state partition')}",)
    what = f"{stage} from {done.before} to {formats.plural(done.partitions, 'state partition')}"
    if dry_run:
        return (f"would rescale {what} with v{done.version}",)
    return (
        f"rescaled {what} with v{done.version}; {formats.plural(done.ssts, 'SST')} kept as they are",
        "a runner that is on stops now; go on with them: slackwater run FILE",
    )
