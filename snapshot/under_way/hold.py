"""That an app is to read no further than some offsets: a note that its runners obey for as long as it is renewed."""

from collections.abc import Iterable

from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits, notes
from ..cut.stored import notify

RENEW_S = 2.0
"""How often whoever holds an app says so."""
LAPSE_S = 15.0
"""From when on a runner takes no notice of a hold that nobody renewed: who held the app is gone."""


class Hold(Struct, frozen=True):
    """What an app is held for, and where."""

    app: limits.Name
    name: limits.Name
    """The name that is to go over."""
    to: limits.Name
    """The app that is to get it."""
    by: limits.Line
    renewed: limits.Count
    """Another number each time it is written."""
    until: dict[limits.Topic, limits.Offsets]
    """By users' topic, where to end; a partition that is not named stands still."""
    clock_ms: limits.SpanMs | None
    """Up to when rows may fall due by the clock; None for now."""


def find(store: ObjectStore, app: str) -> Hold | None:
    """The app's hold, None where it has none. One request."""
    return notes.find(store, keys.hold(app), Hold, under=lambda found: keys.hold(found.app))


def hold(store: ObjectStore, each: Iterable[Hold], *, tell: bool) -> None:
    """Write holds. Only with `tell` do runners that know of none look at once."""
    for one in each:
        notes.put(store, keys.hold(one.app), one)
        if tell:
            notify(store, one.app)


def release(store: ObjectStore, apps: Iterable[str]) -> None:
    """Let these apps read on, and have their runners look at once."""
    for app in apps:
        store.delete(keys.hold(app))
        notify(store, app)
