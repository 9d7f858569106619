"""Fencing of an app's runner in the old store, when the app is recovered in another store."""

from dataclasses import dataclass

from ...errors import Refused, SlackwaterError
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.replicas import Replica, find_replica_state
from ...snapshot.take.audit_log import record_operation_once
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Primary:
    """State of an app in the old store, in which it ran before the recovery."""

    root: str
    heads: dict[str, Manifest]
    unreachable: str = ""
    """Reason why the old store cannot be reached; empty if it can be reached."""
    recovered_to: str = ""
    """Root to which an earlier recovery moved the app; empty if there was none."""

    def check_not_recovered_elsewhere(self, app: str, target: str) -> None:
        """Raise `Refused` if the app was already recovered into a root other than `target`."""
        if self.recovered_to not in ("", target):
            raise RecoveredElsewhere(app, self.root, self.recovered_to)


class RecoveredElsewhere(Refused):
    """The app was already recovered from a different replica, and may run there."""

    def __init__(self, app: str, root: str, runs: str) -> None:
        super().__init__(
            f"{app} of {root} was already recovered and runs under {runs}: recovering it again would run it twice",
            hint=f"slackwater status {app} --store {runs}; to recover it again later, replicate it to another root",
        )


def inspect_primary(store: ObjectStore | None, root: str, app: str, created_ms: int, to: str) -> Primary:
    """Return the state of the app in its old store. Errors are returned as `Primary.unreachable`.

    If an earlier recovery to the root `to` fenced the app by claims, these claims are left out of the newest versions.
    """
    if store is None:
        return Primary(root, {}, "it was not contacted")
    try:
        info = apps.find_app(store, app)
        if info is None or info.created_ms != created_ms:
            return Primary(root, {}, "it no longer has this app")
        role = find_replica_state(store, app)
        left_for = role.root if role is not None and role.state == "left" else ""
        heads = heads_of(store, app, history.list_stages(store, app))
        own = {}
        for stage, head in heads.items():
            if head.by == _author(to):
                earlier = (version for version in history.iter_backwards(store, head) if version.by != _author(to))
                own[stage] = next(earlier, head)
        return Primary(root, {**heads, **own}, recovered_to=left_for)
    except SlackwaterError as error:
        return Primary(root, {}, error.message)


def fence_runner(
    store: ObjectStore, primary: Primary, app: str, to: str, created_ms: int, *, by: str, now_ms: int
) -> str:
    """Record in the old store that the app moved to the root `to`, and fence its runner there. Idempotent.

    The old store refuses runners that are started afterwards. Returns an error message if fencing failed, else an empty
    string. Raises `Refused` if the app was recovered from a different replica at the same time.
    """
    try:
        expected, key = Replica(app, to, created_ms, "left", by=by, time_ms=now_ms), keys.recovered_root(app)
        existing = codec.add(store, key, expected, key_of=lambda replica: keys.recovered_root(replica.app))
        if existing.root != to:
            raise RecoveredElsewhere(app, store.url, existing.root)
        codec.put(store, keys.replica(app), existing)
        for stage, head in primary.heads.items():
            if head.retired:
                continue
            change = Amendment("claim", requires=lambda newest: newest.by != _author(to) and not newest.retired)
            amend(store, (app, stage), change, by=_author(to), now_ms=now_ms)
        record_operation_once(store, app, "recover", f"elsewhere: it runs under {to} since", by, since_ms=0)
    except RecoveredElsewhere:
        raise
    except SlackwaterError as error:
        return error.message
    return ""


def _author(to: str) -> str:
    return f"slackwater recover, to {to}"
