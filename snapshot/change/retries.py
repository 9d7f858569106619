"""Requests to retry a stage's rejected records.

A request is one object. The stage's runner does it between two batches, and then removes the request. The same commit
marks the records that were retried, so repeating a request after a crash is harmless.
"""

from msgspec import Struct
from ulid import ULID

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.codec import Notes
from ...store.versions.side_tables import rejected_of
from ..cut.moments import heads_of, stages_of
from ..cut.stored import notify
from ..take.audit_log import record_once
from ..under_way.exclusion import Intent, check_exclusion


class RetryRequest(Struct, frozen=True):
    """Request to retry the rejected records of one stage."""

    id: limits.Ulid
    stage: limits.Name
    created_ms: limits.TimeMs
    by: limits.Line


RETRIES = Notes(RetryRequest, keys.retries, lambda request: request.id)
"""Open requests, oldest first."""


def waiting(store: ObjectStore, app: str, stage: str = "") -> dict[str, int]:
    """Return the number of rejected records to retry by stage, or of `stage` alone if given.

    Raises `NotFound` if the app or stage does not exist.
    """
    stages = stages_of(store, app, stage)
    heads = heads_of(store, app, (stage,) if stage else stages)
    return {name: count for name, head in heads.items() if (count := rejected_of(head).waiting)}


def ask(store: ObjectStore, app: str, stage: str, *, by: str, now_ms: int) -> RetryRequest:
    """Request a retry of a stage's rejected records; returns the open request if there is one.

    Raises `NotFound` if the app or stage does not exist, and `Refused` if there is nothing to retry.
    """
    check_exclusion(store, app, Intent.RETRY)
    if not waiting(store, app, stage):
        raise Refused(f"{app}/{stage} has no rejected records to retry")
    request = next((open_request for open_request in RETRIES.all(store, app) if open_request.stage == stage), None)
    if request is None:
        request = RETRIES.add(store, RetryRequest(str(ULID()), stage, now_ms, by), app)
    record_once(store, app, "rejected --retry", stage, by, since_ms=request.created_ms)
    notify(store, app)
    return request
