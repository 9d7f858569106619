"""`slackwater snapshot`: take, list, show and remove named moments of an app."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...client.show.document import TableBlock
from ...common import instants
from ...errors import Usage
from ..options import APP, DRY_RUN, argument, duration_option, flag, option
from ..session import Session, group, verb
from ..terminal import Progress

if TYPE_CHECKING:
    from ...client import StoredApp
    from ...snapshot.take.taking import SnapshotProgress

snapshot = group(
    "Take, list, show and remove snapshots of an app.",
    "slackwater snapshot take flights before-deploy",
    "slackwater snapshot list flights",
)

_APP = argument("APP", "Name of the app, or APP@NAME.")
_NAME = argument("NAME", "Name of the snapshot.", None)


def _snapshot_of(session: Session, app: str, name: str | None) -> "tuple[StoredApp, str]":
    """Return the app and the snapshot's name, given as two words or as a ref. Raises `Usage` for neither."""
    app_name, _, named = app.partition("@")
    if bool(named) == bool(name):
        typed, expected = " ".join(filter(None, (app, name))), f"expected {app_name} NAME, or {app_name}@NAME"
        hint = f"slackwater snapshot list {app_name} shows them"
        raise Usage(f"{typed!r} names no snapshot; {expected}", hint=hint)
    return session.app(app_name), named or str(name)


@verb(
    "slackwater snapshot take flights before-deploy",
    "slackwater snapshot take flights --instant      # works for a stopped app, too",
    parent=snapshot,
    kafka=True,
    changes=True,
)
def take(
    session: Session,
    app_name: str = APP,
    name: str | None = argument("NAME", "Name of the snapshot. Default: the UTC time, as 20261121-071205.", None),
    instant: bool = flag(
        "--instant", "Pin the newest consistent moment without asking the app. Works for a stopped app."
    ),
    timeout: int = duration_option("Withdraw the request after this long. Default: 60s.", 60000, bare_seconds=True),
    wait: bool = option(None, "Wait until it is complete.", True, name="--wait/--no-wait"),
) -> None:
    """Take a snapshot of a running app without pausing it.

    Markers in the topics between stages (Chandy-Lamport) make the snapshot consistent. It includes in-flight records;
    no state is copied. gc keeps all its versions.
    """
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with session.progress() as progress:
        on_look = _progress_of(progress, f"snapshot {name} of {app_name}")
        result = session.app(app_name).take_snapshot(
            name, instant=instant, timeout_s=timeout / 1_000, wait=wait, on_poll=on_look
        )
    session.show(result)


@verb("slackwater snapshot list flights", parent=snapshot, name="list")
def list_(session: Session, app_name: str = APP) -> None:
    """List the snapshots of an app, and the requested ones that are not complete yet."""
    session.show(session.app(app_name).snapshot_listing())


@verb("slackwater snapshot show flights before-deploy", parent=snapshot)
def show(session: Session, app_name: str = _APP, name: str | None = _NAME) -> None:
    """Show a snapshot's versions, input offsets and in-flight records."""
    app, name = _snapshot_of(session, app_name, name)
    session.show(app.describe(name))


@verb("slackwater snapshot rm flights before-deploy --dry-run", parent=snapshot, changes=True)
def rm(
    session: Session,
    app_name: str = _APP,
    name: str | None = _NAME,
    dry_run: bool = DRY_RUN,
    force: bool = flag("--force", "Remove it even if a clone uses it."),
) -> None:
    """Remove a snapshot, or withdraw the request for one.

    The versions stay in the history until retention removes them.
    """
    app, name = _snapshot_of(session, app_name, name)
    session.show(app.remove_snapshot(name, force=force, dry_run=dry_run))


def _progress_of(progress: Progress, title: str) -> "Callable[[SnapshotProgress], None]":
    previous: dict[str, tuple[str, str]] = {}

    def on_look(look: "SnapshotProgress") -> None:
        rows, news = [], []
        for stage, answer in look.answers.items():
            markers, recorded = ", ".join(answer.awaited), "…" if answer.version is None else f"v{answer.version}"
            marker = "not seen" if answer.version is None else f"awaits {markers}" if markers else "passed on"
            rows.append((stage, marker, recorded, instants.format_with_age(answer.head_ms)))
            if answer.version is not None and previous.get(stage) != (marker, recorded):
                news.append(f"{stage} recorded {recorded}{f', awaits the marker on {markers}' if markers else ''}")
            previous[stage] = marker, recorded
        waited = "" if look.complete else f": {look.waited_s:.1f} s"
        for line in news or [""]:
            progress(line, title + waited, TableBlock.from_rows(("stage", "marker", "recorded", "last commit"), rows))

    return on_look
