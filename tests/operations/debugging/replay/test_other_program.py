"""Messages of a replay whose program is not the program that ran."""

from pathlib import Path

import pyarrow as pa
import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.debugging.replay.record import find_record
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions import manifest

from tests.state.event_time.falling import Stage

ROWS = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
CHECKSUM = "0123456789abcdef" * 2


def test_any_exception_of_a_replay_becomes_the_reason_why_no_record_is_named(tmp_path: Path) -> None:
    state = sw.aggregate(n=sw.count())
    stage = Stage(state.bind([ROWS], ("user",)), ("user",), ROWS, state.stored)
    stage.batch([{"user": "b", "amount": 7, "at": 1}])
    where = "SELECT user FROM s WHERE user = 'b'"
    verdict = bisect(stage.store, stage.resources.kept, "a", where)
    app, bound = sw.App("a"), state.bind([ROWS], ("user",))
    app.stage(name="s", reads=sw.topic("t"), key="user", state=state)(lambda rows: rows)
    shape = StageSchemas({}, {}, ("user",), stage.declared(bound, state.stored), bound)
    # Its stage has no input of this program: what a replay then raises is no error of ours.
    program = LoadedProgram(app, None, {"s": shape}, stage.store, stage.resources.kept, {}, LocalStore(tmp_path))  # type: ignore[arg-type]
    found = find_record(program, verdict, SqlPredicate(where))
    assert found.reason.startswith("ValueError: ")
    assert (found.hops, found.source_record, found.proved) == ((), None, False)
    assert found.windows == verdict.lineage.direct


@pytest.mark.parametrize("name", ["s", "renamed"])
def test_for_a_commit_before_a_migration_the_message_names_the_file_that_ran(tmp_path: Path, name: str) -> None:
    state = sw.aggregate(n=sw.count())
    stage = Stage(state.bind([ROWS], ("user",)), ("user",), ROWS, state.stored)
    stage.head = replace(stage.head, program=manifest.Program("/home/ada/shop.py", CHECKSUM))
    stage.batch([{"user": "a", "amount": 1, "at": 0}])
    stage.batch([{"user": "b", "amount": 7, "at": 1}])
    where = "SELECT user FROM s WHERE user = 'b'"
    verdict = bisect(stage.store, stage.resources.kept, "a", where)
    # The program has changed: its table has one more column, or its stage another name.
    changed = sw.aggregate(n=sw.count(), most=sw.max("amount"))
    bound = changed.bind([ROWS], ("user",))
    shape = StageSchemas({}, {}, ("user",), stage.declared(bound, changed.stored), bound)
    app = sw.App("a")
    app.stage(name=name, reads=sw.topic("t"), key="user", state=changed)(lambda rows: rows)
    program = LoadedProgram(app, None, {name: shape}, stage.store, stage.resources.kept, {}, LocalStore(tmp_path))  # type: ignore[arg-type]
    found = find_record(program, verdict, SqlPredicate(where))
    assert not found.hops
    assert (
        f"/home/ada/shop.py (xxh3_128 {CHECKSUM}) ran then: give that version of the file with --code" in found.reason
    )
