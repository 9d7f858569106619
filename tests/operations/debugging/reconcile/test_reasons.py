"""Each planted record is reported as missing from the table, with its planted reason."""

import re
import shlex
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
import slackwater as sw
from slackwater.cli import main
from slackwater.errors import Unavailable
from slackwater.operations.debugging.reconcile.reasons import MissingReason
from slackwater.operations.debugging.reconcile.replayed import ReplayedFates
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions import keys
from slackwater.store.versions.horizon import BOUNDARIES, Boundary
from typer.testing import CliRunner

from tests.models.profiles import PROFILE
from tests.operations.debugging.reconcile.planted import APP, EVENTS, STAGE, TOPIC, Plants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from slackwater.operations.debugging.replay.batches import ReplayBatch

SEEDS = {"default": (0, 5), "ci": range(200), "nightly": range(1_000)}
"""Seeds by profile. Seed 5 leaves records unread; seed 0 ends with a rewind."""


def planted(folder: Path, seed: int) -> Plants:
    """Return an app whose history has each kind of event at least once, in random order, and some unread records."""
    plants, random = Plants(folder, seed), Random(f"events {seed}")
    events = [*EVENTS, *random.choices(EVENTS, k=6)]
    random.shuffle(events)
    plants.plain()
    for event in events:
        event(plants)
    if random.random() < 0.5:
        plants.undo_and_wait()
    else:
        plants.send("unread")
    return plants


def reason_of(key: str) -> str:
    return key.partition("-")[0]


@pytest.mark.parametrize("seed", SEEDS[PROFILE])
def test_each_record_is_missing_for_the_planted_reason(seed: int, tmp_path: Path) -> None:
    plants = planted(tmp_path, seed)
    with plants.client:
        keys = [*plants.places, "absent-0"]
        theirs = pa.table({"k": keys, "n": [1] * len(keys)})
        found = plants.app.reconcile(STAGE, theirs, limit=0).full_result
        missing = {key for key in keys if reason_of(key) != "counted"}
        assert found.comparison.agree == len(keys) - len(missing)
        assert found.comparison.there_only == len(missing)
        reasons = {difference.key["k"]: difference.reasons for difference in found.keys}
        assert reasons.keys() == missing
        unarchived = [key for key in plants.places if reason_of(key) in ("lost", "skipped", "forgotten")]
        is_gone = {key for key in unarchived if not plants.in_kafka(key)}
        assert bool(found.gaps) == bool(is_gone)
        for key, (first, *_) in reasons.items():
            assert isinstance(key, str)
            # If neither Kafka nor the archive has a record, it is not found by its key. Any such record may have had
            # the key.
            of_gone = {reason_of(gone) for gone in is_gone}
            if key in is_gone or (is_gone and reason_of(key) == "absent"):
                assert first.kind == (min(of_gone) if len(of_gone) == 1 else "unknown"), (key, first)
                assert not first.proved
                continue
            assert first.kind == reason_of(key), (key, first)
            if first.record is not None:
                assert first.record == plants.places[key]
        for key, place in plants.places.items():
            alone = plants.app.why_not(STAGE, key, record=str(place)).full_result
            kinds = {reason.kind for reason in (*alone.reasons, *alone.counted)}
            assert reason_of(key) in kinds, (key, alone)


def test_a_record_that_the_topic_does_not_have_is_absent(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 0)
    with plants.client:
        plants.batch("counted")
        for place in (RecordLocation(TOPIC, 0, 99), RecordLocation(TOPIC, 7, 0)):
            (reason,) = plants.app.why_not(STAGE, "counted-1", record=str(place)).full_result.reasons
            assert (reason.kind, reason.proved) == ("absent", True)


def test_records_are_chosen_by_a_condition(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 0)
    with plants.client:
        plants.batch("counted", "filtered", "late")
        where = "value::VARCHAR LIKE '%filtered%'"
        found = plants.app.why_not(STAGE, "filtered-2", where=where).full_result
        assert [reason.record for reason in found.reasons] == [plants.places["filtered-2"]]


def test_the_summary_counts_each_reason_once(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 3)
    with plants.client:
        plants.batch("counted", "rejected", "filtered", "filtered")
        keys = [*plants.places]
        found = plants.app.reconcile(STAGE, pa.table({"k": keys, "n": [1] * len(keys)}))
        kinds = Counter(difference.reasons[0].kind for difference in found.full_result.keys)
        assert kinds == {"rejected": 1, "filtered": 2}
        assert "3 keys: 2 filtered by the program, 1 rejected" in repr(found)
        assert f"{APP}/{STAGE}" in repr(found)


def test_what_a_collected_version_did_is_not_known(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 0)
    with plants.client:
        read = [plants.batch("filtered")[0] for _ in range(4)]
        first = plants.head.version - 3
        for version in (first + 1, first + 2):
            plants.store.delete(keys.manifest(APP, STAGE, version))
        kept = tuple(range(1, first + 1))
        BOUNDARIES.put(plants.store, Boundary(1, True, {STAGE: first + 3}, {STAGE: kept}), APP)
        kinds = [[reason.kind for reason in plants.app.why_not(STAGE, key).full_result.reasons] for key in read]
    # The collected versions may also have read the record of the version right after them.
    assert kinds == [["filtered"], ["unknown"], ["unknown"], ["unknown"]]


def test_a_kafka_that_does_not_answer_leaves_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plants = Plants(tmp_path, 0)

    def silent(*_: object, **_named: object) -> None:
        raise Unavailable("Kafka does not answer")

    with plants.client:
        names = [*plants.batch("counted", "filtered"), "absent-0"]
        monkeypatch.setattr(plants.kafka, "topic_state", silent)
        found = plants.app.reconcile(STAGE, pa.table({"k": names, "n": [1] * len(names)})).full_result
    assert found.comparison.agree == 1
    assert found.gaps == ("Kafka does not answer",)
    # The archive has what was read.
    assert {str(each.key["k"]): each.reasons[0].kind for each in found.keys} == {
        "filtered-2": "filtered",
        "absent-0": "unknown",
    }


def test_after_the_last_batch_a_replay_names_a_verb_that_replays_all(tmp_path: Path) -> None:
    plants = Plants(tmp_path, 1)
    with plants.client:
        (key,) = plants.batch("filtered")
        place = plants.places[key]
        client, store = plants.client, plants.store
        # Spark is not reached: as many batches as are allowed are open.
        program = LoadedProgram(
            sw.App(APP), cast("SparkSession", None), {}, store, client.cache, plants.kafka, LocalStore(tmp_path / "s")
        )
        fates = ReplayedFates(program, {STAGE: plants.head}, STAGE)
        fates._batches.max_batches = 1
        fates._batches.opened["other", 1] = cast("ReplayBatch", None)
        fate = MissingReason("filtered", "it is not there", place, proved=False)
        settled = fates.settle(fate, pa.table({"k": [key]}))
        assert not settled.proved
        command = re.search(r"slackwater (impact .*) replays all", settled.sentence)
        assert command is not None, settled
        words = shlex.split(command[1])
        assert words == ["impact", APP, str(place), "--limit", "0"]
        # The options are those of the verb.
        assert CliRunner().invoke(main.app, [*words, "--help"]).exit_code == 0
