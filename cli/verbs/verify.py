"""`slackwater verify`: recompute from what is stored that a moment is consistent, complete and undamaged."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ... import instants
from ...results import formats
from ...results.document import Block, Table, Title
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.verify.ledger import Entry
    from ...snapshot.verify.verify import Report

_TELL_S = 1.0
_ACCEPTED = "sent = consumed + lost + in flight"


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
    from ...snapshot.verify.verify import verify as prove

    opened, reader = session.store, session.settings.open_channels() if deep else None
    with session.output.progress() as progress:
        report = prove(opened, ref, now_ms=instants.now_ms(), deep=deep, reader=reader, on_progress=_seldom(progress))
    session.note_thinned(ref, report.thinned_out)
    ledger = [asdict(entry) | {"difference": entry.difference} for entry in report.ledger]
    session.show({"consistent": report.consistent, **asdict(report), "ledger": ledger}, *_parts(report))
    if not report.consistent:
        raise typer.Exit(1)


def _seldom(progress: Callable[[str], None]) -> Callable[[str], None]:
    """`progress`, not more often than a person reads."""
    last_s = time.monotonic()

    def now_and_then(line: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_S:
            last_s = time.monotonic()
            progress(line)

    return now_and_then


def _parts(report: "Report") -> Iterator[Block]:
    from ...snapshot.verify.report import CHECKS

    yield Title(report.ref)
    # Most apps never lose a record: a column for it is there only where one did.
    lossy = any(any(entry.lost) for entry in report.ledger)
    if report.ledger:
        headings = (
            "channel",
            "from",
            "to",
            "partition",
            ">sent",
            ">consumed",
            *((">lost",) if lossy else ()),
            ">in flight",
            ">difference",
            "counted in",
        )
        yield Table.of(headings, (line for entry in report.ledger for line in _lines(entry, lossy=lossy)))
    yield ""
    yield Table.of(
        ("", ">checked", "", ">differences"),
        (
            (
                each.check,
                formats.plural(each.checked, CHECKS[each.check][0]),
                _ACCEPTED if lossy and each.check == "channels" else CHECKS[each.check][1],
                str(each.differences),
            )
            for each in report.checks
        ),
    )
    yield ""
    yield from report.not_reread
    read = f"{formats.plural(report.requests, 'request')}, {formats.size(report.bytes_read)} read"
    if report.consistent:
        yield f"consistent ({read})"
        return
    yield f"not consistent: {report.differences[0].message}"
    if more := len(report.differences) - 1:
        yield f"and {formats.plural(more, 'more difference')}; --json has them all"


def _lines(entry: "Entry", *, lossy: bool) -> Iterator[tuple[str, ...]]:
    """One line for the channel, and one for each partition where it does not add up."""
    counted = entry.in_flight
    place = (entry.channel, f"{entry.sender}@v{entry.sender_version}", f"{entry.receiver}@v{entry.receiver_version}")
    sent, consumed = (sum(each) if each else None for each in (entry.sent, entry.consumed))
    where = f"{counted.where} (not re-read)" if counted.where and counted.not_reread else counted.where or "not re-read"
    lost = (sum(entry.lost),) if lossy else ()
    yield (*place, "all", *map(formats.count, (sent, consumed, *lost, counted.rows, entry.difference)), where)
    for partition, (*passed, gone, rows, difference) in enumerate(entry.partitions):
        if difference:
            numbers = (*passed, *((gone,) if lossy else ()), rows, difference)
            yield ("", "", "", str(partition), *map(formats.count, numbers), "")
