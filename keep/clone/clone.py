"""Clone an app at a moment: new manifests that point at the source's SSTs, and channels of its own.

No byte of state is read or copied, so a clone costs the same at ten thousand keys and at five million. The order makes
it safe to stop anywhere: the source's cut is pinned first, then the clone's identity is written, and with it the clone
exists; the rest only rolls forward, and the same call again finishes it.
"""

import dataclasses
from collections.abc import Mapping

from msgspec.structs import replace

from ... import instants
from ...errors import NotFound, Refused
from ...moments.cut.graph import Cut, violations
from ...moments.cut.refs import parse
from ...moments.cut.stored import read_snapshot
from ...moments.take.audit_log import record_once
from ...moments.take.remove import remove_pins_without_clone
from ...moments.take.snapshots import pin
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps
from .first_versions import Channels, finish_clone
from .plan import ClonePlan, make_plan


def clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    topics: Mapping[str, str],
    channels: Channels,
    sinks: Mapping[str, str] | None = None,
    target_store: ObjectStore | None = None,
    by: str,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> ClonePlan:
    """Make app `name` from another app's moment; the source only gets a snapshot that pins its cut.

    A call that was interrupted is finished by the same call again, which finds nothing to do when the clone is there.

    The clone reads `topics` instead of the source's, by their names as declared, with the same partitions and offsets;
    those that are not named are read on by both. It publishes `sinks`: a topic of its own for each sink by its name as
    declared, where a function gets its own name; those that are not named are not written at all. It lives in
    `target_store`, or in the source's. Relative refs count from `now_ms`, or the wall clock. With `dry_run`, everything
    is checked and nothing changed.

    Raises:
        Usage: the ref, or the name, is malformed.
        NotFound: there is no such app, moment, topic or sink.
        Refused: the name or one of its topics is taken, a topic does not hold the offsets, or records in
            flight are gone.
        Unavailable: storage or Kafka did not answer; the clone may have been begun, and the same call finishes it.
    """
    target = target_store or store
    moment_ms = instants.now_ms() if now_ms is None else now_ms
    plan = make_plan(store, target, parse(source, now_ms=moment_ms), name, topics, sinks or {}, channels, moment_ms)
    if dry_run:
        return plan
    # How a pin names the clone's root.
    root = "" if target.url == store.url else target.url
    if not plan.resumed:
        plan = _begin(store, target, plan, root, by)
    remove_pins_without_clone(store, plan.source.app, name, root)
    finish_clone(store, target, plan.info, channels=channels, by=by)
    # In the logs of both apps, unless it is there: an earlier call may have died before or after it.
    since_ms, where = plan.info.created_ms, f"{name} in {root}" if root else name
    detail, same = f"{source} as {where}", f" as {where}"
    record_once(store, plan.source.app, "clone", detail, by, since_ms=since_ms, same=lambda had: had.endswith(same))
    born = f"from {source} in {store.url}"
    record_once(target, name, "clone", born, by, since_ms=since_ms, same=lambda _had: True)
    return plan


def _begin(store: ObjectStore, target: ObjectStore, plan: ClonePlan, root: str, by: str) -> ClonePlan:
    """Pin the source's cut and write the clone's identity: from here on the clone exists."""
    origin = plan.info.origin
    if origin is None:
        raise AssertionError("a clone without an origin")
    info = replace(plan.info, origin=replace(origin, snapshot=_pin_for(store, plan.source, plan.info.name, root, by)))
    try:
        apps.create_app(target, info)
    except Refused:
        if apps.find_app(target, info.name) is not None:
            # Somebody else was faster: what was pinned for this call keeps nothing alive.
            remove_pins_without_clone(store, origin.app, info.name, root)
        raise
    return dataclasses.replace(plan, info=info)


def _pin_for(store: ObjectStore, cut: Cut, name: str, root: str, by: str) -> str:
    """Pin the cut for the clone and return the snapshot's name.

    An earlier clone of that name, or a call that stopped before the clone existed, may have left its own pin.
    It is not ours to remove: whoever made it may be just about to go on.
    """
    keeper = read_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    if keeper is not None and keeper.stages != cut.versions:
        found = "there is another one of that name since this clone was planned"
        raise NotFound(f"snapshot of app {cut.app!r}", cut.snapshot, found=found, hint="say it again to clone that one")
    base = f"clone-{name}"[:56]
    candidates = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    for candidate in candidates:
        try:
            return pin(store, cut, candidate, "clone", by=by, clone=name, clone_root=root, keeper=keeper).name
        except Refused:
            if violations(cut.stages) or not cut.stages:
                raise
    raise Refused(
        f"all snapshot names from {base} to {candidates[-1]} of {cut.app} are taken",
        hint=f"`slackwater snapshot list {cut.app}` shows them; remove those whose clones are gone",
    )
