"""Protected apps: whatever could lose something of one wants its name typed once more.

Protection is of a name. The app that has it is protected, and the one in the folder that is called so, which may have
lost it to a promotion: one note is for both, before and after.
"""

from msgspec import Struct

from ...errors import Protected, Refused
from ...snapshot.take.audit_log import record_once, why
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, keys, limits


class Protection(Struct, frozen=True):
    """The note that an app is protected."""

    app: limits.Name
    """The name that is."""
    by: limits.Line
    time_ms: limits.TimeMs
    message: limits.Line = ""
    """Why."""


def find(store: ObjectStore, app: str) -> Protection | None:
    """The protection of the app in this folder, None where it has none.

    One request, and those of `apps.called` where its folder's name is not protected.
    """
    found = codec.find(store, keys.protected(app), Protection)
    if found is None and (name := apps.name_of(store, app)):
        found = codec.find(store, keys.protected(name), Protection)
    return found


def protect(store: ObjectStore, app: str, *, by: str, now_ms: int) -> Protection:
    """Protect the name of the app in this folder; what protects it, which may be from before.

    Raises `NotFound` where there is no such app, and `Refused` where another one has that name.
    """
    name = _name(store, app)
    found = codec.add(store, keys.protected(name), Protection(name, by, now_ms, why()))
    record_once(store, app, "protect", "", found.by, since_ms=found.time_ms, message=found.message)
    return found


def lift(store: ObjectStore, app: str, *, by: str, typed: str, called: str = "") -> bool:
    """Take the protection away; whether there was one. Raises as `check` and `protect`."""
    name = _name(store, app)
    if (found := find(store, app)) is None:
        return False
    check(store, app, "to protect it no more", typed, called)
    record_once(store, app, "protect --off", "", by, since_ms=found.time_ms)
    for each in (app, name):  # it may have been protected as a clone, before it had the name
        store.delete(keys.protected(each))
    return True


def check(store: ObjectStore, app: str, what: str, typed: str, called: str = "") -> None:
    """Raise `Protected` where the app in this folder is protected, and `typed` is not its name.

    That is the one by which it is `called`, or its folder's. `what` is wanted, as in "to …".
    """
    called = called or app
    if typed == called or (found := find(store, app)) is None:
        return
    if typed in (app, found.app) and "~" not in called:  # else these may be names of another app by now
        return
    why = f": {found.message}" if found.message else ""
    wrong = f"; {typed!r} is not its name" if typed else ""
    raise Protected(
        f"app {called!r} is protected, by {found.by}{why}{wrong}",
        hint=f"{what}, give its name once more: --yes-really {called}",
    )


def _name(store: ObjectStore, app: str) -> str:
    """The name that the app in this folder has. Raises as `protect`."""
    apps.read_app(store, app)
    if (has := apps.folder_of(store, app)) != app:
        raise Refused(
            f"the name {app} went over from this app to the one in folder {has}, and a name is protected for both",
            hint=f"protect {app}: whatever could lose something of either wants its name then",
        )
    return apps.name_of(store, app) or app
