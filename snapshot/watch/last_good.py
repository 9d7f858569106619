"""The tag `last-good`: the newest moment at which every invariant was seen to hold.

It is an instant snapshot under that name, which moves: so it is a ref like any other, `gc` keeps what it names, and all
that it costs is one small object, written anew when it moves. A put replaces an object as a whole, so whoever dies
meanwhile leaves the moment before or the new one.
"""

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ..cut.graph import Cut
from ..cut.stored import Snapshot, find_snapshot
from ..take.snapshots import move, pin

NAME = "last-good"
_BY = "slackwater watch"


def find(store: ObjectStore, app: str) -> Snapshot | None:
    """What the tag names, None before it was set.

    Raises:
        Refused: somebody took a snapshot of this name.
        Unavailable: storage did not answer.
    """
    found = find_snapshot(store, app, NAME)
    if found is not None and not (found.kind == "instant" and found.by.startswith(_BY)):
        by = f", taken by {found.by}" if found.by else ""
        raise Refused(
            f"{app}@{NAME} is a snapshot of its own{by}; a watch would move it",
            hint=f"`slackwater snapshot rm {app} {NAME}` frees the name",
        )
    return found


def advance(store: ObjectStore, cut: Cut, by: str) -> Snapshot:
    """Let the tag name this cut, unless it names a later one. Returns what it names now.

    Raises:
        NotFound: a version of the cut was collected meanwhile; the tag stays where it was.
        Refused: as of `find`.
        Unavailable: storage did not answer.
    """
    found, author = find(store, cut.app), f"{_BY} by {by}"
    if found is None:
        return pin(store, cut, NAME, by=author)
    # Another watch may have seen a newer moment meanwhile.
    is_behind = any(version < found.stages.get(stage, 0) for stage, version in cut.versions.items())
    return found if is_behind or found.stages == cut.versions else move(store, found, cut, by=author)
