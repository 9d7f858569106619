"""`slackwater import`: a new app from a folder that `slackwater export` wrote."""

from pathlib import Path

from ..options import DRY_RUN, Many, argument, option, pairs
from ..session import Session, verb


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
