"""The cause of a bad commit by replays: what needs no record first, then the record, and what made that one bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.causes import Behind, Cause, change_before, guess, unknown, untouched
from ....snapshot.bisect.predicate import Predicate
from ....snapshot.bisect.verdict import Address, Guilty, Hop, Verdict
from ..replay.program import LoadedProgram
from ..replay.record import find_record
from .absence import of_absence, of_other_rows
from .bad_commit import BadCommit
from .deploy import is_given, of_deploy, with_program_before
from .duplicate import of_duplicate
from .operation import of_edit, of_reset
from .time import of_held_clock, of_no_record
from .watermark import of_dropped, of_late_table


def find_cause(
    program: LoadedProgram,
    others: Sequence[LoadedProgram],
    verdict: Verdict,
    predicate: Predicate,
    on_hop: Callable[[Hop], None] = lambda _hop: None,
) -> Behind:
    """What is behind a verdict, as far as replays prove it; `others` are programs that may have run before.

    What a replay raises is told as a reason. Of a class that cannot be asked for an error, nothing is said.
    """
    bad = BadCommit(program, verdict, predicate)
    guilty = find_record(program, verdict, predicate, on_hop)
    if guilty.no_record is not None:
        nothing = guilty.no_record
        cause, _ = _asked([partial(of_no_record, bad, nothing)])
        return Behind(cause or unknown(guilty.reason), guilty)
    if guilty.message is None:
        deployed = partial(_deployed, bad, others, guilty)
        cause, _ = _asked([partial(with_program_before, bad), partial(of_dropped, bad), deployed])
        return Behind(cause or _guess(bad, others) or unknown(guilty.reason), guilty)
    cause, failed = _asked(_before_the_record(bad, guilty))
    if cause is not None:
        return Behind(cause, guilty)
    try:
        deploys = of_deploy(bad, others, guilty)
        note = deploys.note
        if deploys.cause is not None:
            return Behind(deploys.cause, guilty)
    except Exception as error:
        note = f"it is not known whether a new program is behind it: {reason_of(error)}"
    cause, also = _asked(_of_the_record(bad, guilty))
    if cause is None:
        cause = of_records(bad, guilty)
    left = "; ".join(filter(None, (note, *failed, *also)))
    # Of a cause that is not known, the record that was found may be a healthy one.
    return Behind(_noted(cause, left), guilty if cause.kind != "unknown" else None)


def of_records(bad: BadCommit, guilty: Guilty) -> Cause:
    """The cause that a record, or several, are bad."""
    assert guilty.message is not None  # noqa: S101
    first, alone = guilty.message.address, bad.addresses(guilty)
    tied = len(guilty.tied)
    one_of = 1 + tied if tied else None
    order = f"; it is one of {one_of}, which came at the same time in several partitions" if one_of else ""
    is_alone = guilty.hops[0].alone
    if is_alone and len(alone) > 1:
        more = "" if guilty.is_complete else "at least "
        sentence = f"{first} is the first of {more}{len(alone):,} records that are bad by themselves{order}"
        evidence = {"alone": len(alone)}
        return Cause("records", guilty.proved, sentence, first, one_of, _first(first, alone), evidence)
    needs = guilty.hops[0].needs
    if is_alone and not guilty.is_complete and _bad_without(bad, first):
        sentence = f"{first} is the first of several: without it, others of the batch are bad{order}"
        return Cause("records", guilty.proved, sentence, first, one_of, (first,))
    if is_alone:
        sentence = f"{first} is the record behind it{order}"
    else:
        before = f"{needs:,} record{'' if needs == 1 else 's'}" if needs else "records"
        sentence = f"{first} is the record with which it turned bad, with {before} before it{order}"
    return Cause(
        "record",
        guilty.proved,
        sentence if guilty.proved else f"a guess: {sentence}",
        first,
        one_of,
        (first,),
        {"alone": is_alone, "needs": needs},
    )


def _bad_without(bad: BadCommit, record: Address) -> bool:
    """Whether the batch is known to be bad without a record."""
    try:
        return bad.bad_with(bad.without(record))
    except Exception:
        return False


def _first(first: Address, records: tuple[Address, ...]) -> tuple[Address, ...]:
    """All of these, the one that is named among them."""
    return records if first in records else (first, *records)


def _before_the_record(bad: BadCommit, guilty: Guilty) -> Iterator[Callable[[], Cause | None]]:
    """Classes that name no record, or others than the one that was found."""

    def absent() -> Cause | None:
        verdict, program = bad.verdict, bad.program
        return of_absence(bad, guilty, untouched(program.store, program.cache, verdict))

    yield partial(of_reset, bad, guilty)
    yield partial(of_late_table, bad, guilty)
    yield partial(of_held_clock, bad, guilty)
    yield absent


def _of_the_record(bad: BadCommit, guilty: Guilty) -> Iterator[Callable[[], Cause | None]]:
    """Classes that say why the record was bad, as the program was the same."""
    yield partial(of_edit, bad, guilty)
    yield partial(of_dropped, bad)
    yield partial(of_duplicate, bad, guilty)
    yield partial(of_other_rows, bad, guilty)


def _asked(
    classes: Iterator[Callable[[], Cause | None]] | list[Callable[[], Cause | None]],
) -> tuple[Cause | None, list[str]]:
    """The first cause of these that holds, and why others could not be bad."""
    failed: list[str] = []
    for ask in classes:
        try:
            if (cause := ask()) is not None:
                return cause, failed
        except Exception as error:
            failed.append(f"one more cause could not be asked for: {reason_of(error)}")
    return None, failed


def _deployed(bad: BadCommit, others: Sequence[LoadedProgram], guilty: Guilty) -> Cause | None:
    return of_deploy(bad, others, guilty).cause


def _guess(bad: BadCommit, others: Sequence[LoadedProgram]) -> Cause | None:
    """That the commit is the first one of a new program, where the one before was not given; else None."""
    try:
        change = change_before(bad.program.store, bad.commit)
        if change is None or is_given(bad.program, others, change):
            return None
        return guess(bad.program.store, bad.verdict)
    except Exception:
        return None


def _noted(cause: Cause, note: str) -> Cause:
    return replace(cause, evidence={**cause.evidence, "note": note}) if note else cause
