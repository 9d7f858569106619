"""Hold of an app at some offsets: a note that its runners obey as long as it is renewed."""

from collections.abc import Iterable

from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import codec, keys, limits
from ..cut.stored import notify

RENEW_S = 2.0
"""Interval at which the holder renews a hold."""
LAPSE_S = 15.0
"""Age after which runners ignore a hold, because its holder has died."""


class Hold(Struct, frozen=True):
    """Hold of an app: reason and offsets."""

    app: limits.Name
    name: limits.Name
    """Name to be handed over."""
    to: limits.Name
    """App that will get the name."""
    by: limits.Line
    renewed: limits.Count
    """Number that changes with each renewal."""
    until: dict[limits.Topic, limits.Offsets]
    """End offsets by users' topic; runners read nothing from partitions that are not listed."""
    clock_ms: limits.SpanMs | None
    """Clock time up to which rows may fall due; None for now."""


def find(store: ObjectStore, app: str) -> Hold | None:
    """Return the app's hold, or None. One request."""
    return codec.find(store, keys.hold(app), Hold, under=lambda note: keys.hold(note.app))


def hold(store: ObjectStore, holds: Iterable[Hold], *, tell: bool) -> None:
    """Write holds. With `tell`, runners are notified to look at once."""
    for app_hold in holds:
        codec.put(store, keys.hold(app_hold.app), app_hold)
        if tell:
            notify(store, app_hold.app)


def release(store: ObjectStore, apps: Iterable[str]) -> None:
    """Delete the holds of these apps, and notify their runners."""
    for app in apps:
        store.delete(keys.hold(app))
        notify(store, app)
