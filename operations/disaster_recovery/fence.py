"""Stops whoever still runs an app that is recovered elsewhere, as far as its old store can be reached."""

from dataclasses import dataclass

from ...errors import Refused, SlackwaterError
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.replicas import Replica, find
from ...snapshot.take.audit_log import record_once
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Primary:
    """What can be seen of the app where it ran."""

    root: str
    heads: dict[str, Manifest]
    """The newest versions; empty where it cannot be reached."""
    unreachable: str = ""
    """Why not."""
    left_for: str = ""
    """The root under which it runs since an earlier recovery; empty for none."""

    def check_not_left(self, app: str, target: str) -> None:
        """Raise `Refused` where it was recovered from another replica than `target` already: it runs in one place."""
        if self.left_for not in ("", target):
            raise RecoveredElsewhere(app, self.root, self.left_for)


class RecoveredElsewhere(Refused):
    """What is to be recovered is a replica of what was left behind."""

    def __init__(self, app: str, root: str, runs: str) -> None:
        super().__init__(
            f"{app} of {root} was recovered already, and runs under {runs} since: recovered from here too, two would "
            "run",
            hint=f"slackwater status {app} --store {runs}; a replica of that, under a root of its own, is what can be "
            "recovered next",
        )


def look(store: ObjectStore | None, root: str, app: str, created_ms: int, to: str) -> Primary:
    """The app where it ran, as far as that answers: whatever is wrong there is no error.

    What an earlier call that was to recover it under `to` put there to fence it is not counted.
    """
    if store is None:
        return Primary(root, {}, "it was not asked")
    try:
        info = apps.find_app(store, app)
        if info is None or info.created_ms != created_ms:
            return Primary(root, {}, "it has no such app any more")
        found = find(store, app)
        left_for = found.root if found is not None and found.state == "left" else ""
        heads = heads_of(store, app, history.list_stages(store, app))
        own = {stage: next((each for each in history.backwards(store, head) if each.by != _by(to)), head)
               for stage, head in heads.items() if head.by == _by(to)}  # fmt: skip
        return Primary(root, {**heads, **own}, left_for=left_for)
    except SlackwaterError as error:
        return Primary(root, {}, error.message)


def fence(store: ObjectStore, primary: Primary, app: str, to: str, created_ms: int, *, by: str, now_ms: int) -> str:
    """Say at the old root where the app runs from now on, and take every stage from its writer.

    Whoever starts it there again is refused. Done again, it does nothing. Returns why not, where it cannot be done.
    Raises `Refused` where the app was recovered from another replica at the same moment.
    """
    try:
        wanted, key = Replica(app, to, created_ms, "left", by=by, time_ms=now_ms), keys.leaving(app)
        left = codec.add(store, key, wanted, under=lambda each: keys.leaving(each.app))
        if left.root != to:
            raise RecoveredElsewhere(app, store.url, left.root)
        codec.put(store, keys.replica(app), left)
        for stage, head in primary.heads.items():
            if head.retired:
                continue
            change = Amendment("claim", requires=lambda newest: newest.by != _by(to) and not newest.retired)
            amend(store, (app, stage), change, by=_by(to), now_ms=now_ms)
        record_once(store, app, "recover", f"elsewhere: it runs under {to} since", by, since_ms=0)
    except RecoveredElsewhere:
        raise
    except SlackwaterError as error:
        return error.message
    return ""


def _by(to: str) -> str:
    """Whose version it is that takes a stage from its writer."""
    return f"slackwater recover, to {to}"
