"""Classes of causes that are found in the store alone, and verdicts if the predicate changed several times."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.client.show.verdict import verdict_notes, verdict_sentence
from slackwater.snapshot.bisect.causes import (
    CLASSES,
    Cause,
    CauseKind,
    absence_cause,
    find_untouched_keys,
    guess_deploy_cause,
    last_program_change,
    unknown_cause,
)
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import RecordLocation, Verdict
from slackwater.snapshot.query.sql import Bounds
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest, Program

from tests.models.profiles import scaled
from tests.support.histories import Flight, FlightsApp, Kafka

NEGATIVE = "SELECT carrier FROM carriers WHERE delay < 0"
SILENT = "SELECT carrier, flights FROM carriers WHERE flights < (SELECT max(flights) FROM carriers) - 5"
AT = RecordLocation("flights", 1, 7)


class Deployed(FlightsApp):
    """The app, with a program in its manifests that tests may change."""

    def __init__(self) -> None:
        self.program = Program("v1.py", "1" * 32)
        super().__init__(MemoryStore(), Kafka())

    def commit(self, manifest: Manifest) -> Manifest:
        return super().commit(replace(manifest, program=self.program))

    def at_birth(self, draft: Manifest) -> Manifest:
        return replace(super().at_birth(draft), program=self.program)

    def deploy(self, number: int) -> None:
        self.program = Program(f"v{number}.py", str(number) * 32)
        for stage in ("legs", "aircraft", "carriers"):
            self.claim(stage)

    def batches(self, *delays: int, carrier: str = "C0") -> None:
        for delay in delays:
            self.send(Flight("N1", carrier, delay))
            self.step_all()


def found(app: FlightsApp, cache: SstCache, where: str, **how: str) -> Verdict:
    return bisect(app.store, cache, app.name, where, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind, of in CLASSES.items() if not of.names_record])
def test_a_cause_of_a_class_without_records_names_none(kind: CauseKind) -> None:
    for named in ({"record": AT}, {"records": (AT,)}):
        with pytest.raises(ValueError, match="names no record"):
            Cause(kind, proved=True, sentence="it", **named)  # type: ignore[arg-type]
    assert Cause(kind, proved=True, sentence="it").record is None


def test_a_cause_has_only_the_evidence_of_its_class() -> None:
    with pytest.raises(ValueError, match="has evidence 'moon'"):
        Cause("time", proved=True, sentence="it", evidence={"moon": 1})
    assert unknown_cause("nobody looked").evidence == {"reason": "nobody looked"}


def test_a_key_that_the_bad_commit_did_not_write_is_reported_with_its_last_version(cache: SstCache) -> None:
    app = Deployed()
    app.batches(1, 2, carrier="quiet")
    last = app.heads["carriers"].version
    app.batches(*range(20))
    verdict = found(app, cache, SILENT)
    of = find_untouched_keys(app.store, cache, verdict)
    assert of is not None
    assert of.keys.to_pylist() == [{"carrier": "quiet"}]
    cause = absence_cause(app.store, verdict, of, proved=True, suffix="")
    assert (cause.kind, cause.record, cause.records) == ("absence", None, ())
    assert cause.evidence["since"]["version"] == last
    offsets = history.read(app.store, app.name, "legs", verdict.bad.stages["legs"].version).inputs["flights"].offsets
    read_to = cause.evidence["read_to"]
    # The bad commit may not have read all that the app had by then.
    assert {f"flights[{partition}]" for partition in range(len(offsets))} == set(read_to)
    assert all(read_to[f"flights[{partition}]"] <= end for partition, end in enumerate(offsets))


def test_a_key_that_the_bad_commit_wrote_is_not_absent(cache: SstCache) -> None:
    app = Deployed()
    app.batches(1, 2, -9)
    assert find_untouched_keys(app.store, cache, found(app, cache, NEGATIVE)) is None


def test_the_first_batch_of_a_new_program_is_a_guess_that_names_the_missing_file(cache: SstCache) -> None:
    app = Deployed()
    app.batches(1, 2, 3)
    app.deploy(2)
    claimed = app.heads["carriers"].version
    app.batches(-90)
    cause = guess_deploy_cause(app.store, found(app, cache, NEGATIVE))
    assert cause is not None
    assert (cause.kind, cause.proved, cause.record) == ("deploy", False, None)
    assert cause.evidence["stage"] == "carriers"
    assert cause.evidence["version"] == claimed
    assert cause.evidence["from"] == {"path": "v1.py", "checksum": "1" * 32}
    assert cause.evidence["to"] == {"path": "v2.py", "checksum": "2" * 32}
    assert cause.evidence["add"] == "v1.py"
    assert "--code v1.py" in cause.sentence


def test_a_later_batch_of_a_new_program_is_not_blamed_on_the_deploy(cache: SstCache) -> None:
    app = Deployed()
    app.batches(1, 2, 3)
    app.deploy(2)
    claimed = app.heads["carriers"].version
    app.batches(*[5] * 60, -900)
    verdict = found(app, cache, NEGATIVE)
    assert guess_deploy_cause(app.store, verdict) is None
    change = last_program_change(app.store, verdict.bad.stages["carriers"])
    assert change is not None
    assert (change.version, change.last_old_version, change.before.path, change.after.path) == (
        claimed,
        4,
        "v1.py",
        "v2.py",
    )


def test_without_a_program_change_there_is_no_deploy(cache: SstCache) -> None:
    app = Deployed()
    app.batches(1, 2, 3)
    app.claim("carriers")
    app.batches(-90)
    verdict = found(app, cache, NEGATIVE)
    assert last_program_change(app.store, verdict.bad.stages["carriers"]) is None
    assert guess_deploy_cause(app.store, verdict) is None


@settings(scaled(6), suppress_health_check=list(HealthCheck))
@given(delays=st.lists(st.sampled_from([-3, 3]), min_size=3, max_size=12), edge=st.sampled_from(["", "first", "last"]))
def test_a_commit_is_called_first_only_if_no_earlier_commit_was_bad(
    cache: SstCache, delays: list[int], edge: str
) -> None:
    app, total, sums = Deployed(), 0, []
    for delay in (3, *delays, -1_000):
        app.batches(delay)
        total += delay
        sums.append(total)
    turns = [at + 2 for at in range(1, len(sums)) if sums[at] < 0 <= sums[at - 1]]
    verdict = found(app, cache, NEGATIVE, edge=edge)
    said = verdict_sentence(verdict)
    assert verdict.bad_version in turns
    if edge:
        assert verdict.bad_version == turns[0 if edge == "first" else -1]
    assert said.endswith("is the first bad commit of flights") == (verdict.bad_version == turns[0])
    if verdict.bad_version != turns[0]:
        assert "one of the commits at which flights went bad: it was bad before, at flights/carriers@v" in said
    assert any("changed between good and bad more than once" in note for note in verdict_notes(verdict)) == (
        len(turns) > 1
    )


def test_an_assumption_is_stated_if_not_all_changes_were_counted(cache: SstCache) -> None:
    app = Deployed()
    app.batches(*range(1, 40), -5_000)
    over_all = "SELECT sum(delay) AS wrong FROM carriers HAVING sum(delay) < 0"
    verdict = found(app, cache, over_all)
    assert not verdict.is_first_known
    assert verdict_sentence(verdict).endswith(
        "is the first bad commit of flights, assuming that it went from good to bad once"
    )
    short = Deployed()
    short.batches(3, -9)
    # Each of two commits was looked at.
    assert verdict_sentence(found(short, cache, over_all)) == "carriers v3 is the first bad commit of flights"


def test_an_untrusted_predicate_is_not_used_for_a_scan(cache: SstCache) -> None:
    app = Deployed()
    app.batches(*range(1, 40), -5_000)
    verdict = bisect(app.store, cache, app.name, SqlPredicate(NEGATIVE, bounds=Bounds()))
    assert verdict.flips is None
    assert "assuming" in verdict_sentence(verdict)
