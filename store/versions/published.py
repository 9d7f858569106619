"""How far each sink was published: small objects beside a stage's versions, of which the newest counts.

A place lies under the number of its version, and older ones are deleted behind it: so a publisher that was away and
wakes up takes nothing back. For a sink that is a Kafka topic Kafka's own transactions say what was published, and this
follows within seconds: garbage collection, `status` and the deletion of internal records go by it, and each may well
think that a little less was published. For a function it is the place.
"""

from msgspec import Struct

from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import apps, keys, limits
from .manifest import Manifest, Sink
from .notes import Notes


class Place(Struct, frozen=True, order=True):
    """How far a sink was published: all of its versions up to this one."""

    version: limits.Version
    offset: limits.Offset
    """The next message of the internal topic to be published."""
    rows: limits.Count
    """Rows published since the sink began."""


PLACES = Notes(Place, keys.published, lambda place: place.version)
"""Of a sink of a stage of an app."""


def newest(store: ObjectStore, head: Manifest, sink: str) -> Place | None:
    """Where the publisher of a stage's sink is, as far as storage knows; None before its first start.

    A listing, and a read. What an earlier sink of that name left does not count.
    """
    found = PLACES.newest(store, head.app, head.stage, sink)
    return found if found is not None and found.version >= head.sinks[sink].since else None


def note(store: ObjectStore, head: Manifest, sink: str, place: Place, before: Place | None) -> None:
    """Write a place, and delete the one `before` it. Two requests; `Unavailable` where storage did not answer."""
    PLACES.put(store, place, head.app, head.stage, sink)
    if before is not None and before.version < place.version:
        PLACES.remove(store, before.version, head.app, head.stage, sink)


def behind(sink: Sink, place: Place | None) -> int:
    """Rows of a stage's newest version that are not published yet."""
    return sink.sent - (place.rows if place else 0)


def check(store: ObjectStore, head: Manifest) -> None:
    """Raise `Refused` where a stage that will publish no more under this name has rows left. Requests: see `places`."""
    for name, place in places(store, head).items():
        if left := behind(head.sinks[name], place):
            raise Refused(
                f"not all that stage {head.app}/{head.stage} wrote for its sink {name!r} is published yet: "
                f"{left:,} rows to go",
                hint=f"run the program that has it until `slackwater status {head.app}` shows none",
            )


def places(store: ObjectStore, head: Manifest) -> dict[str, Place | None]:
    """Where each sink of a stage's newest version is; none of those that a promotion gave it which was withdrawn.

    Requests as of `newest`, for each. Raises as that does.
    """
    promotion = head.promotion
    if head.sinks and promotion is not None and promotion.to == head.app and apps.outcome(store, promotion) is False:
        return {}  # the next claim gives them up
    return {name: newest(store, head, name) for name in head.sinks}


def needed(store: ObjectStore, head: Manifest) -> dict[str, int]:
    """By sink: the version from which on what is stored is needed to publish it. Requests and errors as of `places`."""
    return {name: place.version if place else head.sinks[name].since for name, place in places(store, head).items()}
