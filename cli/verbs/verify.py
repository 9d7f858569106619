"""`slackwater verify`: recompute from what is stored that a moment is consistent, complete and undamaged."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import instants
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    pass

_TELL_S = 1.0


@verb(
    "slackwater verify flights@before-deploy",
    "slackwater verify flights@before-deploy --deep   # every byte, every row, the whole history",
    "slackwater verify flights --json                 # all differences, for machines",
    kafka=True,
)
def verify(
    session: Session,
    ref: options.Ref,
    deep: bool = options.flag(
        "--deep", "Read every object and the whole history, and what Kafka still has, instead of sizes."
    ),
) -> None:
    """Prove that a moment is whole: that it is consistent, complete and undamaged.

    Every record that a stage sent is accounted for, as consumed or in flight; versions follow each other; every object
    is there. Changes nothing. Exits with 1 at any difference.
    """
    from ...results.kept import verification
    from ...snapshot.verify.verify import verify as prove

    opened, reader = session.store, session.settings.open_channels() if deep else None
    with session.output.progress() as progress:
        report = prove(opened, ref, now_ms=instants.now_ms(), deep=deep, reader=reader, on_progress=_seldom(progress))
    session.note_thinned(ref, report.thinned_out)
    session.show(verification(report))


def _seldom(progress: Callable[[str], None]) -> Callable[[str], None]:
    """`progress`, not more often than a person reads."""
    last_s = time.monotonic()

    def now_and_then(line: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_S:
            last_s = time.monotonic()
            progress(line)

    return now_and_then
