"""The verb that takes people out of what is stored: forget."""

from pathlib import Path
from typing import Any

from ...errors import Usage
from ...results.shown import Result
from ..options import APP, DRY_RUN, FORGOTTEN_KEY, FORGOTTEN_KEYS, YES_REALLY, Many, flag
from ..session import Session, now_and_then, verb


@verb(
    "slackwater forget shop --key customers=4711 --dry-run",
    "slackwater forget shop --key customers=4711 --key orders_by_customer=4711 --message 'request 2026-118'",
    "slackwater forget shop --keys gone.txt",
    """slackwater forget shop --key 'baskets=["DE", 17]'""",
    kafka=True,
    changes=True,
)
def forget(
    session: Session,
    app_name: str = APP,
    key: Many = FORGOTTEN_KEY,
    keys: list[Path] | None = FORGOTTEN_KEYS,
    give_up: bool = flag("--give-up", "Instead, end a forget that broke off and whose keys nobody has any more."),
    yes_really: str = YES_REALLY,
    dry_run: bool = DRY_RUN,
) -> None:
    """Take keys out of all that an app has stored, such as a person's who wants to be forgotten.

    Out of the newest version and of every kept one, of snapshots, records in flight, rejected records and the input
    archive, and of clones: SSTs are written anew without them, and versions are read with these. No tombstone stays,
    and nothing says which keys they were. The app may run meanwhile. --dry-run lists the objects that hold one; what
    is out of reach is listed, too. An interrupted forget is finished by the same command.
    """
    app = session.app(app_name)
    if give_up:
        if key or keys:
            raise Usage("--give-up takes no keys: who has them types the forget again, and it is finished")
        session.show(app.give_up_forgetting())
        return

    def act(typed: str) -> Result:
        with session.progress() as progress:
            how: dict[str, Any] = {"files": keys or (), "dry_run": dry_run, "on_progress": now_and_then(progress)}
            return app.forget_keys(key or (), yes_really=typed, **how)

    session.show(session.confirmed(act, yes_really))
