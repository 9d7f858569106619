"""What a running app is asked for: one object for each snapshot that is under way, and a notice that there is one."""

from msgspec import Struct
from ulid import ULID

from ...errors import ObjectNotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, notes
from ...store.versions import limits as fits
from ...store.versions.notes import Notes


class Request(Struct, frozen=True):
    """What asks a running app for a snapshot. `id` is a ULID, and the name by which stages record it."""

    id: fits.Ulid
    name: fits.Name
    created_ms: fits.TimeMs
    by: fits.Line
    migration: fits.Seq = 0
    """The number of the newest migration that all stages had gone through when it was asked for. One that changes what
    stages answer is decided against those of before: these are withdrawn when it is done."""


class Notice(Struct, frozen=True):
    """That something was asked of the app's runners since they last looked; `id` is another one each time."""

    id: fits.Ulid


REQUESTS = Notes(Request, keys.requests, lambda asked: asked.id)
"""Those that are not answered yet, oldest first."""


def notify(store: ObjectStore, app: str) -> None:
    """Have the app's runners look soon for what is asked of them. To be called once it is there to be found."""
    notes.put(store, keys.notice(app), Notice(str(ULID())))


def newest_notice(store: ObjectStore, app: str) -> bytes:
    """What runners compare with what they saw: another value where somebody has notified them. One read."""
    try:
        return store.get(keys.notice(app))
    except ObjectNotFound:
        return b""


def open_requests(store: ObjectStore, app: str) -> tuple[Request, ...]:
    """The requests that are not answered yet, oldest first. One listing, and one read for each."""
    return REQUESTS.all(store, app)


def cancel(store: ObjectStore, app: str, request: Request) -> None:
    """Withdraw a request; no error when it is answered or withdrawn already."""
    REQUESTS.remove(store, request.id, app)


def own_request(store: ObjectStore, app: str, name: str, by: str) -> Request | None:
    """The request for a snapshot of this name that `by` has made already and that is open; None if there is none."""
    return next((asked for asked in open_requests(store, app) if (asked.name, asked.by) == (name, by)), None)


def check_not_asked(store: ObjectStore, app: str, name: str) -> None:
    """Raise `Refused` when a snapshot of this name is under way."""
    for other in open_requests(store, app):
        if other.name == name:
            raise Refused(
                f"snapshot {name!r} of {app} was asked for already by {other.by} and is not complete",
                hint=f"wait for it, or choose another name; `slackwater snapshot rm {app} {name}` cancels it",
            )
