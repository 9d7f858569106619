"""`slackwater import`, an app from a folder that `slackwater export` wrote; and `export --iceberg`."""

from collections.abc import Collection
from pathlib import Path

from ... import instants
from ...errors import Usage
from ...whole_file import check_folder_name
from ..options import DRY_RUN, Many, argument, option, pairs
from ..session import Session, repeat, verb


@verb(
    "slackwater import flights-before-deploy flights-2 --dry-run",
    "slackwater import flights-before-deploy flights-2 --topic flights=flights-mirrored",
    "slackwater import flights-before-deploy flights --store s3://elsewhere/slackwater --sink alerts=alerts",
    name="import",
    kafka=True,
    changes=True,
)
def import_(
    session: Session,
    folder: Path = argument("DIR", "The folder that slackwater export wrote."),
    name: str = argument("NEWAPP", "Name of the new app."),
    topic: Many = option("NAME=OTHER", "Let the app read topic OTHER where it says NAME; may be repeated."),
    sink: Many = option(
        "NAME=TOPIC", "Let the app publish its sink NAME to this topic; may be repeated. Default: nothing."
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """Make a new app from an exported folder.

    It has the state and the offsets of the moment that was exported, and repartition topics of its own, with what was
    on the way between stages. Every file is compared with its checksum before: a folder that was changed is refused.
    Before the app is whole it is there for nobody; a call that was interrupted is finished by the same call.
    """
    topics = pairs("--topic", topic, "NAME=OTHER", "flights=flights-mirrored")
    sinks = pairs("--sink", sink, "NAME=TOPIC", "alerts=alerts")
    with session.progress() as progress:
        made = session.client.imported(
            folder,
            name,
            topics,
            sinks,
            dry_run=dry_run,
            on_progress=lambda done, total: progress("", f"{name}: {done:,} of {total:,} SSTs written"),
        )
    session.show(made)


def export_iceberg(
    session: Session, ref: str, root: str, tables: Collection[str], every_ms: int | None, keep_ms: int
) -> None:
    """Write them; with `every_ms`, again and again until Ctrl-C or SIGTERM. What is the same then is not shown."""
    from ...client.iceberg import IcebergTables
    from ...pipeline.run.stopping import stop_signals
    from ...results.rows import iceberg_tables

    check_folder_name(root, "--iceberg")
    to = IcebergTables(session.client, ref, root, tables=tables, keep_ms=keep_ms)
    if every_ms is not None:
        to.check_moves()

    def write(*, first: bool) -> None:
        cut = session.client.moment(ref, "exported").cut
        done = to.write(cut)
        if first:
            to.record(cut.app)
        if first or any(each.moved for each in done):
            session.show(iceberg_tables(done, cut, ref, to.root))

    if every_ms is None:
        write(first=True)
        return
    with stop_signals() as stop, stop.at_once():
        write(first=True)
        due_ms = instants.now_ms() + every_ms

        def again() -> None:
            nonlocal due_ms
            write(first=False)
            due_ms = max(due_ms + every_ms, instants.now_ms())

        repeat(session, stop, lambda: due_ms, again, ends=(Usage,))
