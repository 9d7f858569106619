"""Stages under the names that they have and had: a stage that was renamed is found by either (`migrate.rename`)."""

from collections.abc import Collection

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.aside import owner
from ...store.versions.manifest import Manifest
from .graph import Cut
from .moments import heads_of


def called_since(store: ObjectStore, app: str, stage: str) -> str:
    """What a stage is called now that got another name; empty for one that has still its own, or never was."""
    head = history.head(store, app, stage)
    if head is None or not head.called:
        return ""
    return called_since(store, app, head.called) or head.called


def version_of(store: ObjectStore, head: Manifest, version: int) -> Manifest | None:
    """A version of a stage, whatever it was called then; None when it was collected."""
    return history.find(store, head.app, name_at(head, version), version)


def read(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """One version of a stage, also by a name that it got after it. Raises as `history.read`."""
    found = history.find(store, app, stage, version)
    if found is not None:
        return found
    head = history.head(store, app, stage)
    try:
        return history.read(store, app, name_at(head, version) if head is not None else stage, version)
    except NotFound as error:
        error.hint = error.hint or whereabouts(store, app, stage)
        raise


def is_there(store: ObjectStore, cut: Cut, stage: str) -> bool:
    """Whether a cut has a version of a stage, also by a name that it got after it. Raises `Unavailable`."""
    if stage in cut.stages or not cut.stages:
        return stage in cut.stages
    head = history.head(store, cut.app, stage)
    return head is not None and stage in cut.under_names_of({stage: head}).stages


def name_at(head: Manifest, version: int) -> str:
    """What a stage was called at one of its versions."""
    return next((former.stage for former in head.formerly if version < former.version), head.stage)


def having(store: ObjectStore, cut: Cut, tables: Collection[str]) -> Cut:
    """The cut, in which each of these tables is: one that had another name then is there under both.

    Without such a one nothing is asked of the store.

    Raises:
        NotFound: there is no such table; tells the nearest, and what became of one that there was.
        Unavailable: storage did not answer.
    """
    missing = sorted({table for table in tables if table not in cut.tables})
    if not missing:
        return cut
    stages = history.list_stages(store, cut.app)
    owners = {owner(table, stages) for table in missing}
    named = cut.under_names_of(heads_of(store, cut.app, owners.intersection(stages)))
    for table in missing:
        if table not in named.tables:
            raise NotFound(f"table at {cut.ref}", table, cut.tables, hint=whereabouts(store, cut.app, table))
    return named


def whereabouts(store: ObjectStore, app: str, table: str) -> str:
    """Where the table of a stage that was renamed or retired is to be found, for a hint; empty for any other."""
    head = history.head(store, app, table) if table in history.list_stages(store, app) else None
    if head is None or not head.retired:
        return ""
    moment = f"{app}/{table} is the moment when it was"
    name = called_since(store, app, table)
    return f"it is called {name} since: {moment} renamed" if name else f"its stage is retired: {moment}"
