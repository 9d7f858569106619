"""`slackwater log`: the commits of an app, and what people did to it."""

from ...errors import Refused, Unavailable
from .. import options
from ..session import Session, verb


@verb(
    "slackwater log flights",
    "slackwater log flights --stage carriers --limit 5",
    "slackwater log flights --operations",
    kafka=True,
)
def log(
    session: Session,
    app_name: options.App,
    limit: int = options.option("N", "Show this many; 0 for all.", 20, min=0),
    stage: str = options.option("NAME", "Only this stage.", ""),
    operations: bool = options.flag("--operations", "Show what was done to the app, by whom, not its commits."),
) -> None:
    """Show the commits of an app, newest first.

    Each with its rows, the offsets it read (from the first up to, not including, the second), and the
    snapshots it is part of; versions that were thinned out cannot be restored. Where Kafka is known, also whether it
    still holds what each version read, so that it can be replayed. --operations shows instead who took, removed or
    cloned what.
    """
    from ...results import history
    from ...snapshot.query.log import entries
    from ...snapshot.take.audit_log import list_operations
    from ...store.versions.apps import read_app

    if operations:
        read_app(session.store, app_name)
        session.show(history.operations(list_operations(session.store, app_name, limit), app_name))
        return
    topics = session.settings.open_channels()
    try:
        commits = entries(session.store, app_name, limit, stage=stage, topics=topics)
    except (Unavailable, Refused) as error:
        if topics is None:
            raise
        session.note(f"note: nobody knows what can be replayed: {error.message}")
        commits, topics = entries(session.store, app_name, limit, stage=stage), None
    session.show(history.log(commits, app_name, asked_kafka=topics is not None))
