"""Asking that a stage's rejected records be put through its program again.

A request is one object. Whoever runs the stage does it between two batches, and then removes the request. A record that
was taken is marked in the same commit, so what is done twice because somebody died in between does no harm.
"""

from msgspec import Struct
from ulid import ULID

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.notes import Notes
from ...store.versions.side_tables import rejected_of
from ..cut.moments import heads_of, stages_of
from ..cut.stored import notify
from ..take.audit_log import record_once
from ..under_way.exclusion import Intent, check_exclusion


class RetryRequest(Struct, frozen=True):
    """What asks for the rejected records of one stage to be put through again."""

    id: limits.Ulid
    stage: limits.Name
    created_ms: limits.TimeMs
    by: limits.Line


RETRIES = Notes(RetryRequest, keys.retries, lambda request: request.id)
"""Those that are not done yet, oldest first."""


def waiting(store: ObjectStore, app: str, stage: str = "") -> dict[str, int]:
    """The stages with rejected records that wait to be retried, and how many; of `stage` alone, if it is given.

    Raises `NotFound` where there is no such app or stage.
    """
    stages = stages_of(store, app, stage)
    heads = heads_of(store, app, (stage,) if stage else stages)
    return {name: count for name, head in heads.items() if (count := rejected_of(head).waiting)}


def ask(store: ObjectStore, app: str, stage: str, *, by: str, now_ms: int) -> RetryRequest:
    """Ask for what waits of a stage; a request that is open already is the same one.

    Raises `NotFound` where there is no such app or stage, `Refused` where nothing waits.
    """
    check_exclusion(store, app, Intent.RETRY)
    if not waiting(store, app, stage):
        raise Refused(f"no rejected record of {app}/{stage} waits to be retried")
    request = next((each for each in RETRIES.all(store, app) if each.stage == stage), None)
    if request is None:
        request = RETRIES.add(store, RetryRequest(str(ULID()), stage, now_ms, by), app)
    record_once(store, app, "rejected --retry", stage, by, since_ms=request.created_ms)
    notify(store, app)
    return request
