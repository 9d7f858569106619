"""Whether the app that is to get a name runs: promoted over one that does, it would end what publishes."""

from collections.abc import Callable

from ... import instants
from ...errors import Refused
from ...moments.status.lag import beats
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest
from .plan import Heads, PromotionPlan

_BEGINS_S = 5.0
"""A runner that has just claimed its stages gives its first sign of life within this time."""


def check_runs(
    store: ObjectStore, found: PromotionPlan, new: Heads, pause: Callable[[], None], clock: Callable[[], float]
) -> bool:
    """Whether somebody runs the app that is to get the name; False where neither of the two runs.

    Raises `Refused` where a stage of it was never claimed since it was cloned, or only the other one runs: then the
    name would go to an app that publishes nothing. `pause` is called between two looks, `clock` gives seconds.
    """
    hint = f"slackwater run FILE --app {found.staging}, and promote while it runs"
    if never := [stage for stage, head in new.items() if not head.retired and not _was_claimed(store, head)]:
        raise Refused(
            f"{found.staging} is not ready to take over: nobody ran its {' and '.join(never)} yet, since it was "
            "cloned, or given another name",
            hint=hint,
        )
    until = clock() + _BEGINS_S
    while not beats(store, found.to, instants.now_ms()):
        if not beats(store, found.over, instants.now_ms()):
            return False
        if clock() > until:
            raise Refused(
                f"nobody runs {found.staging}, and {found.name} runs: it would end, and nobody would publish any more",
                hint=hint,
            )
        pause()
    return True


def _was_claimed(store: ObjectStore, head: Manifest) -> bool:
    """Whether a runner has had a stage since its first version in this app, and under its name."""
    info = apps.find_app(store, head.app)
    cut = info.origin.cut if info is not None and info.origin is not None else {}
    began = max(1, cut.get(head.stage, 0), *(former.version for former in head.formerly))
    if history.first_version(store, head.app, head.stage) > began:
        return True  # it is long ago that it began: garbage collection has been there since
    return any(each.kind in ("claim", "batch") for each in history.after(store, head.app, head.stage, began - 1))
