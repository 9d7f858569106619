"""Of what an app's folder is a copy, and what became of it: recovered, so the app itself, or left behind by a recovery.

One small object beside the app's identity. Whoever would write to the app looks at it first: an app runs in one place.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import checks, keys, limits, notes
from .manifest import AppInfo

State = Literal["copy", "recovered", "left"]


class Replica(Struct, frozen=True):
    """What lies in an app's folder."""

    app: limits.Name
    root: limits.Line
    """The store root of which it is a copy; of what was left behind, the one under which the app runs since."""
    created_ms: limits.TimeMs
    """When the app was created: another app of the same name was so at another time."""
    state: State = "copy"
    """A copy, which nobody but `replicate` writes to; the app itself, since it was recovered; or left behind: its
    stages were fenced, and the app runs under `root`."""
    snapshots_only: bool = False
    """Whether only the moments of snapshots are copied."""
    topics: dict[limits.Topic, limits.Topic] = {}
    """Users' topics that the app reads under another name since it was recovered, by their names as declared."""
    by: limits.Line = ""
    time_ms: limits.TimeMs = 0
    """When it became what it is."""


@checks.relations.register
def _(value: Replica) -> Iterator[checks.Wrong]:
    yield from checks.root_is_wrong("root", value.root)


def find(store: ObjectStore, app: str) -> Replica | None:
    """What an app's folder says of itself; None of an app that was never copied here. One request."""
    key = keys.replica(keys.check_name("app", app))
    return notes.find(store, key, Replica, under=lambda found: keys.replica(found.app))


def check_runs_here(store: ObjectStore, app: str, what: str) -> Replica | None:
    """Raise `Refused` where an app may not be written to here; `what` says what was to be done. One request."""
    found = find(store, app)
    if found is None or found.state == "recovered":
        return found
    if found.state == "left":
        raise Refused(
            f"{app} was recovered elsewhere by {found.by}, and runs under {found.root} since: {what} is not for "
            f"{store.url} any more",
            hint=f"say --store {found.root}",
        )
    raise Refused(
        f"{app} under {store.url} is a replica of {found.root}: {what} is for the app itself",
        hint=f"say --store {found.root}; or, where that is lost: slackwater recover {app} --from {store.url}",
    )


def topics_of(store: ObjectStore, info: AppInfo | None) -> dict[str, str]:
    """The users' topics that an app reads under another name, by their names as declared. One request."""
    if info is None:
        return {}
    found = find(store, info.name)
    recovered = found.topics if found is not None and found.state == "recovered" else {}
    return {**(info.origin.topics if info.origin is not None else {}), **recovered}
