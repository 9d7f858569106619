"""`slackwater app`: what is done to a whole app."""

from typing import TYPE_CHECKING

from ... import instants
from ...errors import Refused
from .. import options
from ..session import Session, group, verb

if TYPE_CHECKING:
    from ...snapshot.maintain.removal import Removal

app = group()


@app.callback(epilog=options.examples("slackwater app rm flights-staging --dry-run"))
def _app() -> None:
    """Remove an app wholly."""


@verb(
    "slackwater app rm flights-staging --dry-run",
    "slackwater app rm flights-staging --topics          # with its topics and consumer groups in Kafka",
    of=app,
    kafka=True,
)
def rm(
    session: Session,
    app_name: options.App,
    topics: bool = options.flag("--topics", "Also its repartition topics and consumer groups in Kafka."),
    fence: bool = options.flag("--fence", "Also when a runner holds it: that stops."),
    force: bool = options.flag("--force", "Also when clones live from it: these are damaged then."),
    dry_run: options.DryRun = False,
) -> None:
    """Remove an app: its tables, its history, its snapshots.

    Nothing of it can be brought back. It is refused while a clone lives from it. Whatever interrupts it, the same
    command finishes it; the name is free after that. Topics of yours are never touched.
    """
    from ...results.kept import removed
    from ...snapshot.maintain.removal import remove_app
    from ...snapshot.take.audit_log import whoami

    if topics:
        session.settings.kafka()  # says what is missing before anything is done
    done = remove_app(
        session.store,
        app_name,
        by=whoami(),
        now_ms=instants.now_ms(),
        fence=fence,
        force=force,
        dry_run=dry_run,
        outside=lambda removal: _remove_from_kafka(session.settings.kafka(), removal) if topics else None,
        on_wait=session.note,
    )
    session.show(removed(done, _groups(done.removal), topics=topics, dry_run=dry_run))


def _remove_from_kafka(kafka: dict[str, str], removal: "Removal") -> None:
    """Raises `Unavailable`, and `Refused` where Kafka does not allow it."""
    from ...pipeline.kafka.consumer_groups import delete_groups
    from ...pipeline.kafka.topics import delete_topics

    refused = delete_topics(kafka, removal.topics)
    if refused:
        raise Refused(
            f"Kafka does not let these topics of {removal.app} be removed: {', '.join(refused)}",
            hint="remove them yourself, then say it again without --topics",
        )
    delete_groups(kafka, _groups(removal))


def _groups(removal: "Removal") -> tuple[str, ...]:
    from ...pipeline.kafka.consumer_groups import group_of

    return tuple(group_of(removal.app, stage) for stage in removal.stages)
