"""Whether a store root may hold, or holds, the replica of an app, and nothing that others have written there."""

from contextlib import suppress
from dataclasses import dataclass

from ...common import instants
from ...errors import Forbidden, ObjectNotFound, Refused, Usage
from ...snapshot.cut import replicas
from ...snapshot.cut.replicas import Replica
from ...snapshot.take.audit_log import record_once
from ...snapshot.under_way.exclusion import HERE, Intent, check_exclusion
from ...snapshot.under_way.signs import UnderWay
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys
from ..staging.clone_plan import check_roots


@dataclass(frozen=True, slots=True)
class Pair:
    """An app, where it is, and where its replica is to be."""

    store: ObjectStore
    target: ObjectStore
    app: str

    def replica(self, *, recovering: bool = False) -> Replica | None:
        """What the target says of itself; None where nothing is begun there. Writes nothing.

        Raises `NotFound` where there is no such app, `Refused` where the target is something else, or is being
        recovered by others, and `Usage` where both are one root.
        """
        app, here, there = self.app, self.store.url, self.target.url
        if here == there:
            raise Usage(f"{app} is under {here} itself", hint="--to takes another store root, best elsewhere")
        check_roots(self.store, self.target, deep=False)
        info, found = apps.read_app(self.store, app), replicas.find(self.target, app)
        if not recovering:
            check_exclusion(self.store, app, Intent.REPLICATE, *HERE)
        where = f"{app} under {there}"
        if found is None:
            # A clone's replica may have brought SSTs of it along, which it shares: these are no app.
            stages = self.target.list_folders(keys.stages(app))
            if apps.find_app(self.target, app) or any(history.head(self.target, app, each) for each in stages):
                raise Refused(
                    f"{where} is there already, and is no replica: nothing was written",
                    hint="choose another root: a replica begins where there is no app of that name",
                )
            return None
        if found.created_ms != info.created_ms:
            raise Refused(
                f"{where} is a replica of another app {app!r}: of the one under {found.root} that was created "
                f"{instants.when(found.created_ms)}; that of {here} was {instants.when(info.created_ms)}",
                hint="choose another root",
            )
        if found.state != "copy" or found.root != here:
            raise self._not_of_here(found, where)
        if not recovering:
            self.check_not_recovering()
        return found

    def _not_of_here(self, found: Replica, where: str) -> Refused:
        if found.state == "copy":
            return Refused(
                f"{where} is a replica of {found.root}; expected one of {self.store.url}",
                hint=f"slackwater replicate {self.app} --store {found.root} --to {self.target.url}",
            )
        done = "recovered" if found.state == "recovered" else "left behind by a recovery"
        return Refused(
            f"{where} was {done} {instants.when(found.time_ms)} by {found.by}: it is no replica any more",
            hint="choose another root; where the app runs now says `slackwater status`",
        )

    def begin(self, by: str) -> None:
        """Say that the app's folder in the target is its replica: before it, nothing is there."""
        apps.check_root(self.target)
        apps.check_free(self.target, self.app)
        created_ms, now_ms = apps.read_app(self.store, self.app).created_ms, instants.now_ms()
        wanted = Replica(self.app, self.store.url, created_ms, by=by, time_ms=now_ms)
        key = keys.replica(self.app)
        if codec.add(self.target, key, wanted, under=lambda each: keys.replica(each.app)) != wanted:
            self.replica()
            return
        apps.try_storage(self.target, key, wanted)

    def check_not_recovering(self) -> None:
        """Raise `Refused` where the app is being recovered from the target, or was. One request."""
        check_exclusion(self.target, self.app, Intent.REPLICATE, UnderWay.RECOVERY)

    def check_same(self, stage: str, version: int) -> None:
        """Raise `Refused` where a stage's newest version in the target is not that of the app. Two requests."""
        key = keys.manifest(self.app, stage, version)
        try:
            theirs = self.store.get(key)
        except ObjectNotFound:
            newest = history.head(self.store, self.app, stage)
            if newest is not None and newest.version > version:
                return  # collected: whether it was too early, the plan has seen
            has = f"v{newest.version}" if newest is not None else "no version"
            raise Refused(
                f"{self.target.url} has {self.app}/{stage} up to v{version}, and {self.store.url} has {has}: the "
                "replica was written to by others, or the app was set back",
                hint=f"look at both (slackwater log {self.app}); a replica of what is there now needs another root",
            ) from None
        if self.target.get(key) != theirs:
            raise self.by_hand(key)

    def by_hand(self, key: str) -> Refused:
        """The error for an object of the target that is not what the app has under that key."""
        self.check_not_recovering()
        return Refused(
            f"object {key} under {self.target.url} is not that of {self.store.url}: the replica was written to by "
            "others; nothing of it was changed",
            hint=f"look at what was done there: slackwater log {self.app} --store {self.target.url}; a replica that "
            "can be trusted needs another root",
        )

    def note_begun(self, by: str) -> None:
        """Leave word in the app's log that it has a replica, unless it is there; who may only read there need not."""
        begun = replicas.find(self.target, self.app)
        since_ms = begun.time_ms if begun is not None else 0
        with suppress(Forbidden):
            record_once(self.store, self.app, "replicate", f"to {self.target.url}", by, since_ms=since_ms)
