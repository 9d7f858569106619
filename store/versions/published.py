"""Published positions of sinks: small objects beside a stage's versions. Only the newest position of a sink counts.

A position is stored under the number of its version, and older positions are deleted afterwards, so a publisher that
was suspended and resumes cannot move the position back. For a Kafka sink, Kafka's own transactions record what was
published, and the stored position follows within seconds. Garbage collection, `status` and the deletion of internal
records use the stored position, and allow for its lag. For a function as sink, the stored position is the only record
of what was published.
"""

from msgspec import Struct

from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import apps, keys, limits
from .codec import JsonFolder
from .manifest import Manifest, Sink


class PublishedPosition(Struct, frozen=True, order=True):
    """Published position of a sink: the output of all versions up to `version` is published."""

    version: limits.Version
    offset: limits.Offset
    """Offset of the next message on the internal topic to publish."""
    rows: limits.Count


POSITIONS = JsonFolder(PublishedPosition, keys.published_positions, lambda place: place.version)


def newest(store: ObjectStore, head: Manifest, sink: str) -> PublishedPosition | None:
    """Return the stored position of a sink; None before its publisher first started. Costs a listing and a read.

    Ignores the position of an earlier sink with this name.
    """
    place = POSITIONS.newest(store, head.app, head.stage, sink)
    return place if place is not None and place.version >= head.sinks[sink].since else None


def write_position(
    store: ObjectStore, head: Manifest, sink: str, place: PublishedPosition, previous: PublishedPosition | None
) -> None:
    """Store a published position, and delete the `previous` one. Costs two requests."""
    POSITIONS.put(store, place, head.app, head.stage, sink)
    if previous is not None and previous.version < place.version:
        POSITIONS.remove(store, previous.version, head.app, head.stage, sink)


def unpublished_rows(sink: Sink, place: PublishedPosition | None) -> int:
    """Return the number of rows that were written to a sink and are not published yet."""
    return sink.sent - (place.rows if place else 0)


def check_all_published(store: ObjectStore, head: Manifest) -> None:
    """Raise `Refused` if a sink of the stage has rows that are not published yet."""
    for name, place in read_positions(store, head).items():
        if unpublished := unpublished_rows(head.sinks[name], place):
            raise Refused(
                f"the sink {name!r} of stage {head.app}/{head.stage} is not fully published: "
                f"{unpublished:,} rows remain",
                hint=f"run the program that has the sink until `slackwater status {head.app}` shows none",
            )


def read_positions(store: ObjectStore, head: Manifest) -> dict[str, PublishedPosition | None]:
    """Return the published position of each sink of a stage. Costs a listing and a read for each sink.

    Returns no positions if the sinks came with a promotion that was withdrawn.
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
    """Return the oldest version that may have unpublished output, by sink."""
    return {
        name: place.version if place else head.sinks[name].since for name, place in read_positions(store, head).items()
    }
