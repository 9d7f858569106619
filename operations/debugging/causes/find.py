"""Entry point of the search for a cause: tests each kind of cause by replays, then names the bad record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.causes import (
    Cause,
    CauseKind,
    TracedCause,
    find_untouched_keys,
    guess_deploy_cause,
    last_program_change,
    unknown_cause,
)
from ....snapshot.bisect.predicate import Predicate
from ....snapshot.bisect.verdict import Hop, RecordLocation, RecordPath, Verdict
from ..replay.program import LoadedProgram
from ..replay.record import find_record
from .bad_commit import BadCommit
from .deploy import find_deploy_cause, find_deploy_cause_with_old_program, is_old_program_given
from .event_time import explain_no_record, find_dropped_late_cause, find_expiry_cause, find_late_table_cause
from .input import (
    find_absence_cause,
    find_duplicate_cause,
    find_edit_cause,
    find_replaceable_record_cause,
    find_reset_cause,
)


def find_cause(
    program: LoadedProgram,
    other_programs: Sequence[LoadedProgram],
    verdict: Verdict,
    predicate: Predicate,
    on_hop: Callable[[Hop], None] = lambda _hop: None,
) -> TracedCause:
    """Return the cause of the bad commit that a bisect found, as far as replays prove it.

    `other_programs` are programs that may have run earlier. `on_hop` receives each step from the bad commit upstream to
    the record. If a replay fails, the cause has the error as its reason. If the test of one kind of cause fails, the
    other kinds are still tested.
    """
    bad = BadCommit(program, verdict, predicate)
    guilty = find_record(program, verdict, predicate, on_hop)
    if guilty.recordless_batch is not None:
        finding = guilty.recordless_batch
        cause, _ = _first_cause([partial(explain_no_record, bad, finding)])
        return TracedCause(cause or unknown_cause(guilty.reason), guilty)
    if guilty.source_record is None:
        cause, _ = _first_cause(
            [
                partial(find_deploy_cause_with_old_program, bad),
                partial(find_dropped_late_cause, bad),
                lambda: find_deploy_cause(bad, other_programs, guilty).cause,
            ]
        )
        return TracedCause(cause or _guess(bad, other_programs) or unknown_cause(guilty.reason), guilty)
    cause, failed = _first_cause(_tests_besides_record(bad, guilty))
    if cause is not None:
        return TracedCause(cause, guilty)
    try:
        deploys = find_deploy_cause(bad, other_programs, guilty)
        note = deploys.note
        if deploys.cause is not None:
            return TracedCause(deploys.cause, guilty)
    except Exception as error:
        note = f"cannot tell if a new program is the cause: {reason_of(error)}"
    cause, more_failed = _first_cause(_tests_of_record(bad, guilty))
    if cause is None:
        cause = describe_records(bad, guilty)
    notes = "; ".join(filter(None, (note, *failed, *more_failed)))
    # If the cause is unknown, the suspected record may be healthy.
    cause = replace(cause, evidence={**cause.evidence, "note": notes}) if notes else cause
    return TracedCause(cause, guilty if cause.kind != "unknown" else None)


def describe_records(bad: BadCommit, guilty: RecordPath) -> Cause:
    assert guilty.source_record is not None  # noqa: S101
    first, alone = guilty.source_record.location, bad.bad_record_addresses(guilty)
    is_alone, needs = guilty.hops[0].alone, guilty.hops[0].needs
    kind: CauseKind = "records"
    records: tuple[RecordLocation, ...] = (first,)
    evidence: dict[str, object] = {}
    if is_alone and len(alone) > 1:
        more = "" if guilty.is_complete else "at least "
        text = f"is the first of {more}{len(alone):,} records that are bad by themselves"
        records, evidence = alone if first in alone else (first, *alone), {"alone": len(alone)}
    elif is_alone and not guilty.is_complete and _bad_without(bad, first):
        text = "is the first of several: without this record, others in the batch are still bad"
    else:
        earlier_records = f"{needs:,} record{'' if needs == 1 else 's'}" if needs else "records"
        with_others = f"is the record that turned it bad, together with {earlier_records} before it"
        text = "is the record behind it" if is_alone else with_others
        kind, evidence = "record", {"alone": is_alone, "needs": needs}
    one_of = 1 + len(guilty.tied) if guilty.tied else None
    tie = f"; one of {one_of} candidates: records with the same time in several partitions have no order"
    guess = "" if guilty.proved or kind == "records" else "a guess: "
    sentence = f"{guess}{first} {text}{tie if one_of else ''}"
    return Cause(kind, guilty.proved, sentence, first, one_of, records, evidence)


def _bad_without(bad: BadCommit, record: RecordLocation) -> bool:
    try:
        return bad.is_bad_with(bad.manifest_without(record))
    except Exception:
        return False


def _tests_besides_record(bad: BadCommit, guilty: RecordPath) -> Iterator[Callable[[], Cause | None]]:
    store, cache = bad.program.store, bad.program.cache
    yield partial(find_reset_cause, bad, guilty)
    yield partial(find_late_table_cause, bad, guilty)
    yield partial(find_expiry_cause, bad, guilty)
    yield lambda: find_absence_cause(bad, guilty, find_untouched_keys(store, cache, bad.verdict))


def _tests_of_record(bad: BadCommit, guilty: RecordPath) -> Iterator[Callable[[], Cause | None]]:
    yield partial(find_edit_cause, bad, guilty)
    yield partial(find_dropped_late_cause, bad)
    yield partial(find_duplicate_cause, bad, guilty)
    yield partial(find_replaceable_record_cause, bad, guilty)


def _first_cause(tests: Iterable[Callable[[], Cause | None]]) -> tuple[Cause | None, list[str]]:
    failed: list[str] = []
    for test in tests:
        try:
            if (cause := test()) is not None:
                return cause, failed
        except Exception as error:
            failed.append(f"one more possible cause could not be tested: {reason_of(error)}")
    return None, failed


def _guess(bad: BadCommit, other_programs: Sequence[LoadedProgram]) -> Cause | None:
    try:
        change = last_program_change(bad.program.store, bad.commit)
        if change is None or is_old_program_given(bad.program, other_programs, change):
            return None
        return guess_deploy_cause(bad.program.store, bad.verdict)
    except Exception:
        return None
