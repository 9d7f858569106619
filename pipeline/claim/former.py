"""The program of the app that had a name until another one was promoted over it: it must not take that one over."""

from collections.abc import Iterable

from ...errors import Refused
from ...keep.promote.switch import newest_of
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest
from ..api.app import App
from .claim import program_of


def check_program(store: ObjectStore, app: App, heads: Iterable[Manifest]) -> None:
    """Refuse the program of the app that had the name of this one, whose newest versions these are, before it.

    Started again by what keeps it up, it would take the new one over; migrated to it, that would be what was before. No
    request for an app that took part in no promotion. Raises `Refused`.
    """
    found, mine = tuple(heads), program_of(app)
    promotion = newest_of(found)
    if mine is None or promotion is None:
        return
    name = promotion.name
    now, *earlier = apps.promoted(store, name)
    if now != app.name or not earlier:
        return
    for head in found:
        had = history.head(store, earlier[0], head.stage)
        before = had.program.checksum if had is not None and had.program is not None else ""
        if before == mine.checksum and head.program is not None and head.program.checksum != before:
            raise Refused(
                f"{mine.path} is the program that {name} had before {app.name} was promoted over it; now it has "
                f"{head.program.path}",
                hint=f"run that one; or this one beside it, silent: slackwater run {mine.path} --app {name}~1",
            )
