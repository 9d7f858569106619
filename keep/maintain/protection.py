"""Protected apps: whatever could lose something of one wants its name typed once more."""

from msgspec import Struct

from ...errors import Protected
from ...moments.take.audit_log import record_once, why
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, keys, limits, notes


class Protection(Struct, frozen=True):
    """The note that an app is protected."""

    app: limits.Name
    by: limits.Line
    time_ms: limits.TimeMs
    message: limits.Line = ""
    """Why."""


def find(store: ObjectStore, app: str) -> Protection | None:
    """The app's protection, None where it has none. One request."""
    return notes.find(store, keys.protected(app), Protection)


def protect(store: ObjectStore, app: str, *, by: str, now_ms: int) -> Protection:
    """Protect an app; what protects it, which may be from before. Raises `NotFound` where there is no such app."""
    apps.read_app(store, app)
    found = notes.add(store, keys.protected(app), Protection(app, by, now_ms, why()))
    record_once(store, app, "protect", "", found.by, since_ms=found.time_ms, message=found.message)
    return found


def lift(store: ObjectStore, app: str, *, by: str, typed: str) -> bool:
    """Take the protection away; whether there was one. Raises as `check`, and `NotFound` where there is no such app."""
    apps.read_app(store, app)
    if (found := find(store, app)) is None:
        return False
    check(store, app, "to protect it no more", typed)
    record_once(store, app, "protect --off", "", by, since_ms=found.time_ms)
    store.delete(keys.protected(app))
    return True


def check(store: ObjectStore, app: str, what: str, typed: str) -> None:
    """Raise `Protected` where an app is protected, and `typed` is not its name. `what` is wanted, as in "to …"."""
    if typed != app and (found := find(store, app)) is not None:
        why = f": {found.message}" if found.message else ""
        raise Protected(
            f"app {app!r} is protected, by {found.by}{why}",
            hint=f"{what}, give its name once more: --yes-really {app}",
        )
