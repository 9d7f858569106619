"""Where the newest program of an app began, by what its versions say of the files that declared them."""

from collections.abc import Mapping
from functools import partial

from ...errors import NotFound
from ...moments.cut.moments import line_of
from ...moments.cut.refs import Ref, parse
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest


def before_deploy(store: ObjectStore, heads: Mapping[str, Manifest]) -> Ref:
    """The moment right before the newest program began, by the files that claims were made from.

    Now, where the app was just taken back to before one. Some 20 requests for each claim since, and each stage. Raises
    `NotFound` where no earlier program is known.
    """
    live = [head for head in heads.values() if not head.retired]
    app = next(iter(heads.values())).app
    line = line_of(store, app)
    if live and all(_undid_a_deploy(store, head) for head in live):
        return parse(line.ref(line.heads), now_ms=0)
    deploys = [deploy for head in live if (deploy := _deployed(store, head)) is not None]
    if not deploys:
        raise NotFound(
            "earlier program of the app",
            app,
            found="every version that is left is of the program that it has now",
            hint=f"`slackwater log {app}` shows what there is: name a moment",
        )
    return parse(line.ref(line.before(min(deploys, key=line.place))), now_ms=0)


def _undid_a_deploy(store: ObjectStore, head: Manifest) -> bool:
    undone = history.before(store, head) if head.rewind is not None else None
    return undone is not None and _are_of_two(undone, head)


def _are_of_two(one: Manifest, other: Manifest) -> bool:
    """Whether two versions are known to be of different programs."""
    return one.program is not None and other.program is not None and one.program.checksum != other.program.checksum


def _deployed(store: ObjectStore, head: Manifest) -> Manifest | None:
    """The claim, or migration, with which a stage's program became what it is; None where none is known before it."""
    read, first = partial(history.read, store, head.app), partial(history.first_version, store, head.app)
    at = head
    while True:
        # A program changes with a claim, and a claim has an epoch of its own.
        earlier = history.newest_where(read, first, at, partial(_is_before, at.epoch))
        last = at.rewinds[-1] if at.rewinds else None
        if last is not None and not last.table_only and (earlier is None or last.version > earlier.version):
            # What that undid is no past of this.
            earlier = history.find(store, head.app, head.stage, last.to)
        elif earlier is not None and _are_of_two(earlier, head):
            began = earlier.version + 1
            while earlier is not None and earlier.kind in _FOR_A_PROGRAM:
                began, earlier = earlier.version, history.before(store, earlier)
            return history.read(store, head.app, head.stage, began)
        if earlier is None or earlier.program is None:
            return None
        at = earlier


_FOR_A_PROGRAM = ("migration", "rename")
"""Kinds of versions that belong to the program that is claimed after them."""


def _is_before(epoch: int, each: Manifest) -> bool:
    return each.epoch < epoch
