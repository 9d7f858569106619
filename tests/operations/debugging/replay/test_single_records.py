"""Finds the records of a batch that are bad alone, by the rows that a function returns for each; without Spark."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import slackwater as sw
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.debugging.replay.stage_replay import RecordNumbers, StageReplay
from slackwater.operations.debugging.replay.what_if import bad_alone
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.state.failing import RECORD
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.session import Sessions
from slackwater.store.objects.local import LocalStore
from slackwater.store.sst.hashing import hash_keys

from tests.state.event_time.falling import DELAY, Stage

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("visit", pa.struct([("start", TIME), ("end", TIME)])), ("at", TIME)])
GAP = 20


@dataclass(frozen=True)
class Given(StageReplay):
    """Replay whose function returns these rows, each with the number of its source record."""

    made: pa.Table | None = None

    @property
    def knows_records(self) -> bool:
        return True

    def rows(self, chosen: RecordNumbers | None = None) -> pa.Table:
        assert chosen is None
        assert self.made is not None
        return self.made


def click(user: str, minute: int) -> dict[str, object]:
    start, end = (each * 60_000_000 for each in (minute, minute + GAP))
    return {"user": user, "visit": {"start": start, "end": end}, "at": start}


def test_a_record_for_a_closed_session_is_not_bad_alone(tmp_path: Path) -> None:
    state, once = sw.aggregate(n=sw.count()), sw.event_time(emits="final")
    bound = Sessions(FinalKind(state), "visit").bind([ROWS], ("user", "visit"))
    stage = Stage(bound, ("user",), ROWS)
    stage.batch([click("a", 0), click("b", 15)])
    # The watermark is between the ends of both sessions. No session fell due before.
    stage.batch([click("c", 30 + DELAY)])
    before, clicks = stage.head, [click("a", 16), click("b", 16)]
    stage.batch(clicks)
    app, over = sw.App("a"), sw.repartition("over", "user")
    app.stage(name="s", reads=sw.topic("t"), writes=over, key=["user", "visit"], state=state, event_time=once)(
        lambda rows: rows
    )
    shape = StageSchemas({}, {}, ("user",), stage.table, bound, lateness_columns=("visit",))
    program = LoadedProgram(app, None, {"s": shape}, stage.store, stage.resources.kept, {}, LocalStore(tmp_path))  # type: ignore[arg-type]
    made = pa.Table.from_pylist(clicks, schema=ROWS)
    made = made.append_column("_hash", pa.array(hash_keys(made, ["user"]))).append_column(RECORD, pa.array([0, 1]))
    found = bad_alone(
        Given(program, before, stage.head, made=made), SqlPredicate("SELECT user FROM s WHERE visit[1].n > 1")
    )
    assert found is not None
    assert found.tolist() == [1]
