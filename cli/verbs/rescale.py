"""`slackwater rescale`: another number of state partitions for a stage's table."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Usage
from ...settings import load
from .. import humane, options
from ..output import output_for

if TYPE_CHECKING:
    from ...snapshot.maintain.rescale import Rescaled

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command(
    epilog=options.examples(
        "slackwater rescale flights/carriers --partitions 8",
        "slackwater rescale flights/aircraft --partitions 2 --dry-run",
    )
)
def rescale(
    stage: Annotated[
        str, typer.Argument(metavar="APP/STAGE", help="The stage that keeps the table.", show_default=False)
    ],
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, help="State partitions from now on.", show_default=False)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would be done; change nothing.")
    ] = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Change the number of state partitions of a stage's table.

    As many tasks then work on the state at once. One commit, however large the table: no state is copied, and
    compaction brings it to the new partitions as it merges. A runner of the stage stops; started again, it goes on with
    the new number, whatever partitions= says in the code.
    """
    from ...snapshot.maintain.rescale import rescale as change
    from ...snapshot.take.audit_log import whoami

    app_name, _, stage_name = stage.partition("/")
    if not stage_name:
        raise Usage(
            f"{stage!r} names no stage; expected APP/STAGE",
            hint=f"`slackwater status {app_name}` shows the stages",
        )
    opened = load(store=store).open_store()
    done = change(opened, app_name, stage_name, partitions, by=whoami(), now_ms=humane.now_ms(), dry_run=dry_run)
    output_for(json=as_json).show({**asdict(done), "dry_run": dry_run}, *_words(done, stage, dry_run))


def _words(done: "Rescaled", stage: str, dry_run: bool) -> tuple[str, ...]:
    if done.before == done.partitions:
        return (f"done already: {stage} has {humane.plural(done.before, 'state partition')}",)
    what = f"{stage} from {done.before} to {humane.plural(done.partitions, 'state partition')}"
    if dry_run:
        return (f"would rescale {what} with v{done.version}",)
    return (
        f"rescaled {what} with v{done.version}; {humane.plural(done.ssts, 'SST')} kept as they are",
        "a runner that is on stops now; go on with them: slackwater run FILE",
    )
