"""Why an object of an app is kept, in sentences: the answer that garbage collection would act on."""

from dataclasses import dataclass

from ...errors import NotFound
from ...moments.cut.stored import list_snapshots
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.versions import keys
from .collect import MARGIN_MS
from .inventory import Inventory, last_commit_ms, named, take_inventory, unnamed_records
from .reachable import Reachable, reachable
from .retention import Retention

_THINNED = {"hourly": "of moments that retention keeps hourly", "daily": "of moments that retention keeps daily"}
"""There may be hundreds of them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is to become of one object."""

    object: str
    kept: bool
    reasons: tuple[str, ...]
    """Why it is kept, or why not; at least one."""


def explain(store: ObjectStore, app: str, key: str, retention: Retention, *, margin_ms: int = MARGIN_MS) -> Explanation:
    """Why a collection with these rules would keep an object, or not. Changes nothing.

    The object's key is that under the store root; the root before it, or the app's name left out, do no harm. Objects
    that nothing names stay for `margin_ms`. Ages count from this machine's clock.

    Raises `NotFound` where there is no such app or object, `Corruption` where a manifest that should be there is
    missing or not readable, and `Unavailable`.
    """
    seen = take_inventory(store, app, dry_run=True)
    key = key.removeprefix(f"{store.url}/")
    full = key if key.startswith(f"{app}/") else f"{app}/{key}"
    if not exists(store, full):
        raise NotFound(
            f"object of app {app!r}", key, found=f"looked for {full} under {store.url}", hint="give its whole key"
        )
    key = full
    plan = reachable(seen.known, retention, seen.read)
    for stage, ssts in seen.ssts.items():
        for info in ssts:
            if info.key == key:
                return _sst(seen, plan, stage, info, margin_ms)
        for version, info in seen.manifests.get(stage, {}).items():
            if info.key == key:
                if version > plan.known.stages[stage].head.version:
                    return Explanation(key, True, ("it is newer than the head that was found here",))
                why = tuple(reason.detail for reason in plan.why(stage, version))
                return Explanation(key, bool(why), why or ("no rule of retention, no snapshot and no stage needs it",))
    if key.startswith(keys.snapshots(app)) and not key.endswith(".json"):
        users = [snapshot.name for snapshot in list_snapshots(store, app) if key in snapshot.object_keys]
        if users:
            return Explanation(key, True, tuple(f"snapshot {name} keeps these records in flight" for name in users))
        kept = all(info.key != key for info in unnamed_records(seen, margin_ms))
        no = "no snapshot names it, and none of its name is under way"
        yes = "no snapshot names it yet, but one of its name is under way, or was just now"
        return Explanation(key, kept, (yes if kept else no,))
    what, other = key.removeprefix(f"{app}/"), "it is no object that slackwater writes: collection leaves it alone"
    return Explanation(key, True, (next((why for name, why in _DOCUMENTS.items() if what.startswith(name)), other),))


def _sst(seen: Inventory, plan: Reachable, stage: str, info: ObjectInfo, margin_ms: int) -> Explanation:
    naming: dict[str, list[int]] = {}
    if stage in plan.wholes:
        for version, names in named(seen, stage, plan.versions(stage)):
            if info.key in names:
                for reason in plan.why(stage, version):
                    naming.setdefault(_THINNED.get(reason.rule, reason.detail), []).append(version)
    if naming:
        said = (
            f"{stage}@{_versions(found)} {'names' if len(found) == 1 else 'name'} it: {why}"
            for why, found in naming.items()
        )
        return Explanation(info.key, True, tuple(said))
    if info.modified_ms <= last_commit_ms(seen, stage) - margin_ms:
        why = f"no version that stays names it, and {stage} has committed without it since"
        return Explanation(info.key, False, (why,))
    why = f"nothing names it, but the next batch of {stage} may: it has made none since, or only just"
    return Explanation(info.key, True, (why,))


_DOCUMENTS = {
    **dict.fromkeys(("app.json", "channels.json"), "it says who the app is: kept as long as the app"),
    **dict.fromkeys(("gc.json", "boundaries/"), "it belongs to garbage collection itself"),
    "snapshots/": "it is a snapshot: kept until `slackwater snapshot rm` removes it",
    "requests/": "it asks for a snapshot: kept until that is complete or withdrawn",
    "notice.json": "it tells runners that something was asked of them: written over each time, kept as long as the app",
    "retries/": "it asks a runner to put rejected records through again: kept until that is done",
    "migrations/": "it says what became of each stage when the program was changed: kept as long as the app",
    "log/": "it is part of the log of operations, all of which is kept",
}
"""Why objects beside the versions stay, by what their keys begin with."""


def _versions(found: list[int]) -> str:
    if len(found) == 1:
        return f"v{found[0]}"
    gaps = "" if found[-1] - found[0] + 1 == len(found) else f" ({len(found)} of them)"
    return f"v{found[0]} to v{found[-1]}{gaps}"
