"""Published positions of sinks: small objects beside a stage's versions, of which the newest counts.

A position is stored under the number of its version, and older ones are deleted afterwards, so a publisher that was
suspended and resumes cannot move the position back. For a Kafka sink, Kafka's own transactions record what was
published, and the position follows within seconds; garbage collection, `status` and the deletion of internal records
use the position, and all tolerate a position that lags. For a function, the position itself is the record.
"""

from msgspec import Struct

from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import apps, keys, limits
from .codec import JsonFolder
from .manifest import Manifest, Sink


class PublishedPosition(Struct, frozen=True, order=True):
    """Published position of a sink: all versions up to `version` are published."""

    version: limits.Version
    offset: limits.Offset
    """Next message of the internal topic to publish."""
    rows: limits.Count


POSITIONS = JsonFolder(PublishedPosition, keys.published_positions, lambda place: place.version)


def newest(store: ObjectStore, head: Manifest, sink: str) -> PublishedPosition | None:
    """Return the stored position of a sink; None before its publisher's first start. Costs a listing and a read.

    Ignores the position of an earlier sink with the same name.
    """
    place = POSITIONS.newest(store, head.app, head.stage, sink)
    return place if place is not None and place.version >= head.sinks[sink].since else None


def write_position(
    store: ObjectStore, head: Manifest, sink: str, place: PublishedPosition, previous: PublishedPosition | None
) -> None:
    """Write a position, and delete the `previous` one. Costs two requests."""
    POSITIONS.put(store, place, head.app, head.stage, sink)
    if previous is not None and previous.version < place.version:
        POSITIONS.remove(store, previous.version, head.app, head.stage, sink)


def unpublished_rows(sink: Sink, place: PublishedPosition | None) -> int:
    """Return the number of rows written to a sink and not published yet."""
    return sink.sent - (place.rows if place else 0)


def check_all_published(store: ObjectStore, head: Manifest) -> None:
    """Raise `Refused` if a stage that is about to stop publishing under this name has unpublished rows."""
    for name, place in read_positions(store, head).items():
        if unpublished := unpublished_rows(head.sinks[name], place):
            raise Refused(
                f"the sink {name!r} of stage {head.app}/{head.stage} is not fully published: "
                f"{unpublished:,} rows to go",
                hint=f"run the program that has the sink until `slackwater status {head.app}` shows none",
            )


def read_positions(store: ObjectStore, head: Manifest) -> dict[str, PublishedPosition | None]:
    """Return the position of each sink of a stage's newest version. Costs a listing and a read for each sink.

    Returns no sinks if they were added by a promotion that was withdrawn.
    """
    promotion = head.promotion
    if (
        head.sinks
        and promotion is not None
        and promotion.to == head.app
        and apps.is_promotion_decided(store, promotion) is False
    ):
        return {}  # the next claim removes them
    return {name: newest(store, head, name) for name in head.sinks}


def first_needed_versions(store: ObjectStore, head: Manifest) -> dict[str, int]:
    """Return, by sink, the first version whose output must still be published."""
    return {
        name: place.version if place else head.sinks[name].since for name, place in read_positions(store, head).items()
    }
