"""Rare situations that the seeds must reach, so that a passing run covers more than the usual cases."""

from collections import Counter
from collections.abc import Mapping

from slackwater.store.versions.manifest import Manifest
from slackwater.testing.simulation import SimulatedProcess

SOMETIMES = frozenset((
    "a batch commits on another writer's version",
    "a batch is rebased twice",
    "a clock is wrong by more than ten minutes where a version is committed",
    "a clone has rows in flight",
    "a collection comes between a pin and its look at the boundary",
    "a collection deletes a version",
    "a collection deletes an SST",
    "a compaction commits beside the batches",
    "a late write arrives after its writer has died",
    "a person types while a snapshot is open",
    "a pin is removed",
    "a replica passes a recovery drill",
    "a rewind has rows in flight",
    "a runner dies with rows sent and not committed",
    "a runner is fenced",
    "a runner runs out of patience",
    "a second attempt ends after the batch",
    "a snapshot captures rows",
    "a snapshot is completed by markers",
    "a snapshot is withdrawn",
    "a stage awaits markers",
    "a stage is claimed between another runner's rows and its commit",
    "a stage is migrated to another program",
    "a stage is rescaled",
    "a verb is interrupted",
    "a version is retried after a lost answer",
    "a version merges SSTs",
    "a version names several attempts",
    "a zombie wakes up",
    "damage is noticed",
    "the same verb is typed twice at once",
    "two snapshots are open at once",
))  # fmt: skip


class Rare:
    """Counts the rare situations that a simulation reached."""

    def __init__(self) -> None:
        self.reached = Counter[str]()
        self._uncommitted: set[SimulatedProcess] = set()
        """Processes that have sent rows and have not committed a version since then."""
        self._pins: dict[SimulatedProcess, bool] = {}
        self._put: dict[SimulatedProcess, str] = {}

    def add(self, name: str, condition: object = True) -> None:
        if condition:
            assert name in SOMETIMES, name
            self.reached[name] += 1

    def on_request(self, process: SimulatedProcess, server: str, method: str, key: str) -> None:
        if server == "kafka" and method == "send":
            self._uncommitted.add(process)
        if server != "store":
            return
        if method == "put_if_absent" and "/manifests/" in key:
            self.add("a version is retried after a lost answer", self._put.get(process) == key)
            self._put[process] = key
            wrong_ms = abs(process.skew_ms)
            self.add("a clock is wrong by more than ten minutes where a version is committed", wrong_ms > 600_000)
            self._uncommitted.discard(process)
        if method.startswith("put") and "/snapshots/" in key:
            self._pins[process] = False
        if method.startswith("put") and "/boundaries/" in key:
            self._pins = {other: True for other in self._pins if other is not process}
        if method == "list" and key.endswith("/boundaries/") and (came := self._pins.pop(process, None)) is not None:
            self.add("a collection comes between a pin and its look at the boundary", came)

    def on_kill(self, process: SimulatedProcess) -> None:
        self.add("a runner dies with rows sent and not committed", process in self._uncommitted)
        self.add("a verb is interrupted", process.is_alive and not process.name.startswith("runner"))

    def on_version(self, before: Manifest, after: Manifest) -> None:
        moved = after.version - after.seq if after.kind == "batch" and after.seq else 0
        self.add("a batch commits on another writer's version", moved >= 1)
        self.add("a batch is rebased twice", moved >= 2)
        self.add("a compaction commits beside the batches", after.kind == "compaction")
        self.add("a stage is rescaled", after.kind == "rescale")
        self.add("a stage is migrated to another program", after.kind == "migration")
        self.add("a stage awaits markers", after.awaited)
        self.add("a snapshot captures rows", after.captured)
        self.add("two snapshots are open at once", len(after.recorded) > 1)
        self.add("a version names several attempts", any(len(output.attempts) > 1 for output in after.outputs.values()))
        merged = any(sst.level for sst in after.ssts) and not set(before.ssts) <= set(after.ssts)
        self.add("a version merges SSTs", merged and after.kind == "batch")

    def on_runner_end(self, process: SimulatedProcess) -> None:
        kind = type(process.ended).__name__
        self.add("a runner is fenced", kind == "Fenced")
        late = kind == "Fenced" and process in self._uncommitted
        self.add("a stage is claimed between another runner's rows and its commit", late)
        self.add("a zombie wakes up", kind == "Fenced" and process.asleep_until)
        self.add("a runner runs out of patience", kind in ("Unavailable", "SendFailed"))
        self.add("damage is noticed", kind == "Corruption")

    def on_end(self, results: Mapping[str, int]) -> None:
        self.add("damage is noticed", any(name.endswith(": Corruption") for name in results))
        self.add("a snapshot is completed by markers", results.get("snapshot: done"))
        self.add("a snapshot is withdrawn", results.get("snapshot: Unavailable"))
        self.add("a replica passes a recovery drill", results.get("drill: done"))
