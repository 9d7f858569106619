"""The snapshot to which a table returns, compared with a replay of its history in plain Python."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.publish.tables.protocol import Mark, TableCommit
from slackwater.pipeline.publish.tables.rollback import plan_rollback, snapshot_of

OWN, OTHER = "app/stage/out", "app/other/out"
Writers = st.lists(st.tuples(st.sampled_from((OWN, OTHER, "", "compaction")), st.booleans()), max_size=12)


def history(writers: list[tuple[str, bool]]) -> tuple[list[TableCommit], set[Mark]]:
    """Return commits with increasing versions, and those that belong to the stage's history."""
    log, current = list[TableCommit](), set[Mark]()
    for number, (writer, is_current) in enumerate(writers, 1):
        mark = Mark(writer, "p", number) if writer in (OWN, OTHER) else None
        log.append(TableCommit(f"s{number}", f"s{number - 1}", mark, writer != "compaction", "WRITE"))
        if is_current and mark is not None and writer == OWN:
            current.add(mark)
    return log, current


@given(Writers)
def test_a_rollback_undoes_what_follows_the_newest_current_version(writers: list[tuple[str, bool]]) -> None:
    log, current = history(writers)
    done = plan_rollback(log, OWN, current.__contains__)
    own = [commit for commit in log if commit.mark and commit.mark.sink == OWN]
    if done is None:
        assert not own or own[-1].mark in current
        return
    kept = [commit for commit in log[: int(done.snapshot[1:])] if commit in own]
    lost = log[int(done.snapshot[1:]) :]
    assert own[-1].mark not in current
    assert not kept or kept[-1].mark in current
    assert not any(commit.mark in current for commit in lost)
    assert lost[0] in own
    assert done.undone == tuple(commit for commit in lost if commit in own)
    assert done.others == tuple(commit for commit in lost if commit not in own and commit.changes_rows)


@given(Writers, st.integers(0, 13))
def test_the_snapshot_of_a_version_is_that_of_the_newest_current_version_up_to_it(
    writers: list[tuple[str, bool]], version: int
) -> None:
    log, current = history(writers)
    numbers = [mark.version for mark in current if mark.version <= version]
    expected = f"s{max(numbers)}" if numbers else ""
    assert snapshot_of(log, OWN, version, current.__contains__) == expected
