"""Entry point of the search for a cause: tests each class of causes by replays, then names the bad record."""

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
from .bad_commit import BadCommit
from .deploy import is_given, of_deploy, with_program_before
from .event_time import of_dropped, of_held_clock, of_late_table, of_no_record
from .input import of_absence, of_duplicate, of_edit, of_other_rows, of_reset


def find_cause(
    program: LoadedProgram,
    other_programs: Sequence[LoadedProgram],
    verdict: Verdict,
    predicate: Predicate,
    on_hop: Callable[[Hop], None] = lambda _hop: None,
) -> Behind:
    """Return the cause of a verdict, as far as replays prove it.

    `other_programs` are programs that may have run before. An error in a replay is reported as the cause's reason. A
    class of causes is skipped if its test fails with an error.
    """
    bad = BadCommit(program, verdict, predicate)
    guilty = find_record(program, verdict, predicate, on_hop)
    if guilty.no_record is not None:
        finding = guilty.no_record
        cause, _ = _first_cause([partial(of_no_record, bad, finding)])
        return Behind(cause or unknown(guilty.reason), guilty)
    if guilty.message is None:
        deployed = partial(_deployed, bad, other_programs, guilty)
        cause, _ = _first_cause([partial(with_program_before, bad), partial(of_dropped, bad), deployed])
        return Behind(cause or _guess(bad, other_programs) or unknown(guilty.reason), guilty)
    cause, failed = _first_cause(_causes_besides_the_record(bad, guilty))
    if cause is not None:
        return Behind(cause, guilty)
    try:
        deploys = of_deploy(bad, other_programs, guilty)
        note = deploys.note
        if deploys.cause is not None:
            return Behind(deploys.cause, guilty)
    except Exception as error:
        note = f"cannot tell if a new program is the cause: {reason_of(error)}"
    cause, more_failed = _first_cause(_causes_of_the_record(bad, guilty))
    if cause is None:
        cause = of_records(bad, guilty)
    notes = "; ".join(filter(None, (note, *failed, *more_failed)))
    # If the cause is unknown, the suspected record may be healthy.
    return Behind(_with_note(cause, notes), guilty if cause.kind != "unknown" else None)


def of_records(bad: BadCommit, guilty: Guilty) -> Cause:
    assert guilty.message is not None  # noqa: S101
    first, alone = guilty.message.address, bad.addresses(guilty)
    num_tied = len(guilty.tied)
    one_of = 1 + num_tied if num_tied else None
    order = (
        f"; one of {one_of} candidates: records with the same time in several partitions have no order"
        if one_of
        else ""
    )
    is_alone = guilty.hops[0].alone
    if is_alone and len(alone) > 1:
        more = "" if guilty.is_complete else "at least "
        sentence = f"{first} is the first of {more}{len(alone):,} records that are bad by themselves{order}"
        evidence = {"alone": len(alone)}
        return Cause("records", guilty.proved, sentence, first, one_of, _including(first, alone), evidence)
    needs = guilty.hops[0].needs
    if is_alone and not guilty.is_complete and _bad_without(bad, first):
        sentence = f"{first} is the first of several: without this record, others in the batch are still bad{order}"
        return Cause("records", guilty.proved, sentence, first, one_of, (first,))
    if is_alone:
        sentence = f"{first} is the record behind it{order}"
    else:
        earlier_records = f"{needs:,} record{'' if needs == 1 else 's'}" if needs else "records"
        sentence = f"{first} is the record with which it turned bad, with {earlier_records} before it{order}"
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
    """Return True if a replay shows that the batch is bad without this record; False also if the replay fails."""
    try:
        return bad.bad_with(bad.without(record))
    except Exception:
        return False


def _including(first: Address, records: tuple[Address, ...]) -> tuple[Address, ...]:
    return records if first in records else (first, *records)


def _causes_besides_the_record(bad: BadCommit, guilty: Guilty) -> Iterator[Callable[[], Cause | None]]:
    def absent() -> Cause | None:
        verdict, program = bad.verdict, bad.program
        return of_absence(bad, guilty, untouched(program.store, program.cache, verdict))

    yield partial(of_reset, bad, guilty)
    yield partial(of_late_table, bad, guilty)
    yield partial(of_held_clock, bad, guilty)
    yield absent


def _causes_of_the_record(bad: BadCommit, guilty: Guilty) -> Iterator[Callable[[], Cause | None]]:
    yield partial(of_edit, bad, guilty)
    yield partial(of_dropped, bad)
    yield partial(of_duplicate, bad, guilty)
    yield partial(of_other_rows, bad, guilty)


def _first_cause(
    classes: Iterator[Callable[[], Cause | None]] | list[Callable[[], Cause | None]],
) -> tuple[Cause | None, list[str]]:
    failed: list[str] = []
    for test in classes:
        try:
            if (cause := test()) is not None:
                return cause, failed
        except Exception as error:
            failed.append(f"one more possible cause could not be tested: {reason_of(error)}")
    return None, failed


def _deployed(bad: BadCommit, other_programs: Sequence[LoadedProgram], guilty: Guilty) -> Cause | None:
    return of_deploy(bad, other_programs, guilty).cause


def _guess(bad: BadCommit, other_programs: Sequence[LoadedProgram]) -> Cause | None:
    try:
        change = change_before(bad.program.store, bad.commit)
        if change is None or is_given(bad.program, other_programs, change):
            return None
        return guess(bad.program.store, bad.verdict)
    except Exception:
        return None


def _with_note(cause: Cause, note: str) -> Cause:
    return replace(cause, evidence={**cause.evidence, "note": note}) if note else cause
