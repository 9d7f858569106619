"""`slackwater archive`: what an app's input archives hold, and filling them."""

from ..options import APP, DRY_RUN, option
from ..session import Session, verb


@verb(
    "slackwater archive flights",
    "slackwater archive flights --from flights@-7d --dry-run",
    "slackwater archive flights --from beginning        # with all that Kafka still has of what it read",
    kafka=True,
    changes=True,
)
def archive(
    session: Session,
    app_name: str = APP,
    start: str = option(
        "REF", "Fill it with what was read since this moment, and Kafka still has; or: beginning.", "", name="--from"
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """Show an app's input archives; fill them with what Kafka still has.

    With input = "30d" under [retention] in slackwater.toml, a run keeps what it reads, as Parquet beside the app's
    versions: replays, bisects and trials read there what Kafka has lost, and a query has it as input('TOPIC'). That
    begins where the app stands; --from adds what it read before. Killed anywhere, the same command goes on.
    """
    with session.progress() as progress:
        found = session.app(app_name).archive(start or None, dry_run=dry_run, on_progress=progress)
    session.show(found)
