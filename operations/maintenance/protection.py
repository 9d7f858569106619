"""Protected apps: a destructive command requires that the app's name is typed once more.

A name is protected: the app that has the name, and the app in the folder of that name, which may have lost the name to
a promotion. One note protects both, before and after the promotion.
"""

from msgspec import Struct

from ...errors import Protected, Refused
from ...snapshot.take.audit_log import record_once, why
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, keys, limits, notes


class Protection(Struct, frozen=True):
    """The note that an app is protected."""

    app: limits.Name
    """The protected name."""
    by: limits.Line
    time_ms: limits.TimeMs
    message: limits.Line = ""
    """The reason."""


def find(store: ObjectStore, app: str) -> Protection | None:
    """Return the protection of the app in this folder; None if it is not protected.

    One request, and those of `apps.called` if the folder's name is not protected.
    """
    protection = notes.find(store, keys.protected(app), Protection)
    if protection is None and (name := apps.name_of(store, app)):
        protection = notes.find(store, keys.protected(name), Protection)
    return protection


def protect(store: ObjectStore, app: str, *, by: str, now_ms: int) -> Protection:
    """Protect the name of the app in this folder; returns the protection, which may exist already.

    Raises `NotFound` if the app does not exist, and `Refused` if another one has that name.
    """
    name = _name(store, app)
    protection = notes.add(store, keys.protected(name), Protection(name, by, now_ms, why()))
    record_once(store, app, "protect", "", protection.by, since_ms=protection.time_ms, message=protection.message)
    return protection


def lift(store: ObjectStore, app: str, *, by: str, typed: str, called: str = "") -> bool:
    """Remove the protection; returns False if there was none. Raises the errors of `check` and `protect`."""
    name = _name(store, app)
    if (protection := find(store, app)) is None:
        return False
    check(store, app, "to turn its protection off", typed, called)
    record_once(store, app, "protect --off", "", by, since_ms=protection.time_ms)
    for protected in (app, name):  # it may have been protected as a clone, before it had the name
        store.delete(keys.protected(protected))
    return True


def check(store: ObjectStore, app: str, what: str, typed: str, called: str = "") -> None:
    """Raise `Protected` if the app in this folder is protected, unless `typed` is its name.

    Accepted are the name by which the app is `called`, and that of its folder. `what` is the protected action, as in
    "to …".
    """
    called = called or app
    if typed == called or (protection := find(store, app)) is None:
        return
    if typed in (app, protection.app) and "~" not in called:  # else these may be names of another app now
        return
    why = f": {protection.message}" if protection.message else ""
    wrong = f"; {typed!r} is not its name" if typed else ""
    raise Protected(
        f"app {called!r} is protected, by {protection.by}{why}{wrong}",
        hint=f"{what}, give its name once more: --yes-really {called}",
    )


def _name(store: ObjectStore, app: str) -> str:
    """Return the name of the app in this folder. Raises the errors of `protect`."""
    apps.read_app(store, app)
    if (has := apps.folder_of(store, app)) != app:
        raise Refused(
            f"the name {app} was promoted from this app to the one in folder {has}; protecting a name covers both apps",
            hint=f"protect {app}: destructive commands on either app then ask for that name",
        )
    return apps.name_of(store, app) or app
