"""Checks that a store root has the replica of an app, and that only replication has written to the replica."""

from contextlib import suppress
from dataclasses import dataclass

from ...common import instants
from ...errors import Forbidden, ObjectNotFound, Refused, Usage
from ...snapshot.cut import replicas
from ...snapshot.cut.replicas import Replica
from ...snapshot.take.audit_log import record_operation_once
from ...snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys
from ..staging.clone_plan import check_roots


@dataclass(slots=True)
class ReplicaPair:
    """An app in its store, and the store for the app's replica."""

    store: ObjectStore
    target: ObjectStore
    app: str

    def check_replica(self, *, recovering: bool = False) -> Replica | None:
        """Check that the target has either the app's replica or no app of that name. Returns the replica's mark.

        The mark is the object that marks the app's folder as a replica. Returns None if the target has no replica yet.
        Raises `NotFound` if the app does not exist, `Refused` if the target has a different app of that name or the
        replica is being recovered, and `Usage` if source and target are the same root. Writes nothing.
        """
        app, source_url, target_url = self.app, self.store.url, self.target.url
        if source_url == target_url:
            raise Usage(
                f"{app} cannot be replicated to its own store root, {source_url}",
                hint="name a different store root with --to",
            )
        check_roots(self.store, self.target, deep=False)
        info, replica = apps.read_app(self.store, app), replicas.find_replica_state(self.target, app)
        if not recovering:
            check_exclusion(self.store, app, Intent.REPLICATE, *RUNS_ELSEWHERE)
        where = f"{app} under {target_url}"
        if replica is None:
            # The replica of a clone may have copied SSTs of this app that the clone shares: these alone are no app.
            stages = self.target.list_folders(keys.stages(app))
            if apps.find_app(self.target, app) or any(history.head(self.target, app, stage) for stage in stages):
                raise Refused(
                    f"{where} already exists and is not a replica: nothing was written",
                    hint="choose a store root without an app of that name",
                )
            return None
        if replica.created_ms != info.created_ms:
            raise Refused(
                f"{where} is a replica of another app {app!r}: the one in {replica.root}, created "
                f"{instants.format_with_age(replica.created_ms)}; the one in {source_url} was created "
                f"{instants.format_with_age(info.created_ms)}",
                hint="choose another root",
            )
        if replica.state != "copy" or replica.root != source_url:
            raise self._other_replica(replica, where)
        if not recovering:
            self.check_not_recovering()
        return replica

    def _other_replica(self, replica: Replica, where: str) -> Refused:
        if replica.state == "copy":
            return Refused(
                f"{where} is a replica of {replica.root}; expected one of {self.store.url}",
                hint=f"slackwater replicate {self.app} --store {replica.root} --to {self.target.url}",
            )
        done = "recovered" if replica.state == "recovered" else "left behind by a recovery"
        return Refused(
            f"{where} was {done} {instants.format_with_age(replica.time_ms)} by {replica.by}: it is no longer a "
            f"replica",
            hint="choose another root; `slackwater status` shows where the app runs now",
        )

    def mark_replica(self, by: str) -> None:
        """Put an object that marks the app's folder in the target as a replica, before anything is copied."""
        apps.check_root(self.target)
        apps.check_name_free(self.target, self.app)
        created_ms, now_ms = apps.read_app(self.store, self.app).created_ms, instants.now_ms()
        expected = Replica(self.app, self.store.url, created_ms, by=by, time_ms=now_ms)
        key = keys.replica(self.app)
        if codec.add(self.target, key, expected, key_of=lambda replica: keys.replica(replica.app)) != expected:
            self.check_replica()
            return
        apps.check_conditional_puts(self.target, key, expected)

    def check_not_recovering(self) -> None:
        """Raise `Refused` if the replica is being recovered, or was recovered. Makes one request."""
        check_exclusion(self.target, self.app, Intent.REPLICATE, AppCondition.RECOVERY)

    def check_version_equal(self, stage: str, version: int) -> None:
        """Raise `Refused` if app and replica have different manifests of a version.

        Makes two requests.
        """
        key = keys.manifest(self.app, stage, version)
        try:
            source_data = self.store.get(key)
        except ObjectNotFound:
            newest = history.head(self.store, self.app, stage)
            if newest is not None and newest.version > version:
                return  # garbage collection deleted it; `plan_copy` has checked that the version is no longer needed
            has = f"v{newest.version}" if newest is not None else "no version"
            raise Refused(
                f"{self.target.url} has {self.app}/{stage} up to v{version}, but {self.store.url} has {has}: "
                "something else wrote to the replica, or the app's store was restored from a backup",
                hint=f"compare both (slackwater log {self.app}); to replicate the app as it is, choose another root",
            ) from None
        if self.target.get(key) != source_data:
            raise self.foreign_write_error(key)

    def foreign_write_error(self, key: str) -> Refused:
        self.check_not_recovering()
        return Refused(
            f"object {key} under {self.target.url} differs from that of {self.store.url}: something else wrote "
            "to the replica; nothing was changed",
            hint=f"see what was done there: slackwater log {self.app} --store {self.target.url}; for a replica "
            "that can be trusted, choose another root",
        )

    def log_start(self, by: str) -> None:
        """Record in the app's log of operations that replication started, once. Skipped without permission to write."""
        begun = replicas.find_replica_state(self.target, self.app)
        since_ms = begun.time_ms if begun is not None else 0
        with suppress(Forbidden):
            record_operation_once(self.store, self.app, "replicate", f"to {self.target.url}", by, since_ms=since_ms)
