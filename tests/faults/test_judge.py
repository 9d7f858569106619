"""The judge of verdicts reports all errors, and nothing else."""

from typing import Any

import pytest

from tests.faults.history import Record
from tests.faults.judge import Truth, earliest, wrong
from tests.faults.plants import Plant

BAD, LATER, HEALTHY = "t[0]@7", "t[1]@9", "t[0]@3"


def a_plant(name: str, *causes: str) -> Plant:
    return Plant(name, "totals", "FROM totals", frozenset(causes), guilty=[Record({})], key="p1", operation_kind="edit")


def the_truth(**more: Any) -> Truth:
    known: dict[str, Any] = {
        "topics": frozenset({"t"}),
        "turns": (4,),
        "guilty": frozenset({BAD, LATER}),
        "first": {4: frozenset({BAD})},
        "in_batch": {4: (BAD, LATER)},
    }
    return Truth(**(known | more))


def a_verdict(kind: str, *, version: int = 4, record: str | None = None, **more: Any) -> dict[str, Any]:
    cause = {"class": kind, "proved": True, "sentence": "so it is", "record": record, "one_of": None}
    cause |= {"records": [record] if record else [], "evidence": {}} | more
    return {"stage": "totals", "first_bad": {"version": version}, "cause": cause, "record": None}


def said(verdict: dict[str, Any], plant: Plant, truth: Truth, *, whole: bool = True, shown: str = "") -> str:
    return "; ".join(wrong(verdict, shown, plant, truth, whole=whole))


RECORDS = a_plant("several records", "record", "records")


def test_the_first_bad_record_and_later_ones_are_accepted() -> None:
    assert said(a_verdict("records", record=BAD, records=[BAD, LATER]), RECORDS, the_truth()) == ""


@pytest.mark.parametrize(
    ("verdict", "what"),
    [
        (a_verdict("records", record=LATER), "the first is"),
        (a_verdict("records", record=BAD, records=[BAD, HEALTHY]), "a healthy record is named"),
        (a_verdict("records", record=BAD, sentence=f"after {HEALTHY}"), "a healthy record is named"),
        (a_verdict("records", record=BAD, one_of=2), "are as early"),
        (a_verdict("record", record=BAD), "2 records are at fault"),
        (a_verdict("records", record=BAD, proved=False), "not proved"),
        (a_verdict("deploy"), "the class"),
        (a_verdict("unknown"), "the class"),
        (a_verdict("records", version=5, record=BAD), "the commit"),
        ({**a_verdict("records"), "cause": None}, "no cause"),
    ],
)
def test_wrong_statements_about_records_are_errors(verdict: dict[str, Any], what: str) -> None:
    assert what in said(verdict, RECORDS, the_truth())


def test_any_of_several_unordered_records_may_be_named_together_with_their_number() -> None:
    truth = the_truth(first={4: frozenset({BAD, LATER})})
    assert said(a_verdict("records", record=LATER, one_of=2), RECORDS, truth) == ""
    assert "are as early" in said(a_verdict("records", record=LATER), RECORDS, truth)


def test_a_row_between_two_stages_is_not_accepted_as_a_users_record() -> None:
    verdict = a_verdict("records", record=BAD, evidence={"alone": "app-by-key-repartition[0]@3+1"})
    assert said(verdict, RECORDS, the_truth()) == ""


def test_with_fewer_programs_the_cause_may_stay_open_but_no_healthy_record_may_be_named() -> None:
    assert said(a_verdict("unknown"), RECORDS, the_truth(), whole=False) == ""
    assert said(a_verdict("deploy", proved=False), RECORDS, the_truth(), whole=False) == ""
    assert "the class" in said(a_verdict("deploy"), RECORDS, the_truth(), whole=False)
    unknown = a_verdict("unknown", sentence=f"perhaps {HEALTHY}")
    assert "a healthy record" in said(unknown, RECORDS, the_truth(), whole=False)


def test_a_fault_without_a_record_must_name_none() -> None:
    plant, truth = a_plant("absence", "absence"), the_truth(guilty=frozenset(), first={}, in_batch={})
    assert said(a_verdict("absence", evidence={"keys": [{"k": "p1"}]}), plant, truth) == ""
    assert "absent is" in said(a_verdict("absence", evidence={"keys": [{"k": "a3"}]}), plant, truth)
    assert "a healthy record" in said(a_verdict("record", record=HEALTHY), plant, truth)


def test_both_records_of_a_duplicate_must_be_named() -> None:
    plant = a_plant("duplicate", "duplicate")
    assert said(a_verdict("duplicate", record=BAD, records=[BAD, LATER]), plant, the_truth()) == ""
    assert "the records" in said(a_verdict("duplicate", record=BAD), plant, the_truth())


def test_a_watermark_verdict_must_name_the_late_record_and_the_one_that_moved_the_watermark() -> None:
    plant = a_plant("watermark", "watermark")
    known = {"movers": frozenset({BAD}), "moved_version": "parse@v2", "late": frozenset({LATER})}
    truth = the_truth(guilty=frozenset({BAD}), **known)
    evidence = {"late": LATER, "moved_by": BAD, "moved_version": "parse@v2"}
    assert said(a_verdict("watermark", evidence=evidence), plant, truth) == ""
    assert "moved by" in said(a_verdict("watermark", evidence=evidence | {"moved_by": HEALTHY}), plant, truth)
    assert "late t[0]@3" in said(a_verdict("watermark", evidence=evidence | {"late": HEALTHY}), plant, truth)
    assert "no record is named" in said(a_verdict("watermark", evidence=evidence | {"moved_by": None}), plant, truth)
    other = evidence | {"moved_version": "parse@v3"}
    assert "it was parse@v2" in said(a_verdict("watermark", evidence=other), plant, truth)


def test_verdicts_on_deploys_operations_and_expiries_must_name_the_right_version() -> None:
    none = {"guilty": frozenset(), "first": {}, "in_batch": {}}
    deploy, truth = a_plant("deploy", "deploy"), the_truth(changed=3, **none)
    ran = {"from": {"path": "/x/release1.py"}, "to": {"path": "/x/release2.py"}, "stage": "totals", "version": 3}
    assert said(a_verdict("deploy", evidence=ran), deploy, truth) == ""
    assert "the program changed at" in said(a_verdict("deploy", evidence=ran | {"version": 2}), deploy, truth)
    assert "from" in said(a_verdict("deploy", evidence=ran | {"to": ran["from"]}), deploy, truth)
    edit, known = a_plant("operation", "operation"), the_truth(operations=frozenset({("totals", 4)}), **none)
    done = {"kind": "edit", "stage": "totals", "version": 4}
    assert said(a_verdict("operation", evidence=done), edit, known) == ""
    assert "it was edit" in said(a_verdict("operation", evidence=done | {"version": 3}), edit, known)
    assert "it was edit" in said(a_verdict("operation", evidence=done | {"kind": "reset"}), edit, known)
    time = a_plant("expiry", "time")
    assert said(a_verdict("time", evidence={"version": 4}), time, the_truth(**none)) == ""
    assert "time at v5" in said(a_verdict("time", evidence={"version": 5}), time, the_truth(**none))


def test_only_the_first_bad_commit_may_be_called_first() -> None:
    truth = the_truth(turns=(2, 4))
    verdict = a_verdict("records", record=BAD, records=[BAD, LATER])
    assert "was bad before" in said(verdict, RECORDS, truth, shown="totals v4 is the first bad commit of x")
    assert said(verdict, RECORDS, truth, shown="totals v4 is one of the commits") == ""


def test_records_of_a_batch_are_ordered_by_offset_and_across_partitions_by_time() -> None:
    def at(partition: int, offset: int, time_ms: int) -> Record:
        return Record({}, topic="t", partition=partition, offset=offset, time_ms=time_ms)

    def addresses(*records: Record) -> list[str]:
        return sorted(record.address for record in earliest(records))

    assert addresses(at(0, 9, 5), at(0, 7, 5), at(1, 2, 6)) == ["t[0]@7"]
    assert addresses(at(0, 7, 5), at(1, 2, 4)) == ["t[1]@2"]
    assert addresses(at(0, 7, 5), at(0, 8, 1), at(1, 2, 4)) == ["t[1]@2"], "offset 8 is not before 7, whatever its time"
    assert addresses(at(0, 7, 5), at(1, 2, 5), at(2, 1, 6)) == ["t[0]@7", "t[1]@2"]
    assert addresses() == []
