"""The app's line: a total order of all commits, on which times, versions, steps back and the log are based."""

from datetime import UTC, datetime
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.cut.graph import Cut, consumed_versions, topological_order, violations
from slackwater.snapshot.cut.moments import read_line
from slackwater.snapshot.cut.refs import AtTime, AtVersion, CommitsBack, Ref
from slackwater.snapshot.cut.resolve import cut_of_ref, resolve
from slackwater.snapshot.query.log import log_entries
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.models.profiles import scaled
from tests.snapshot.cut.test_graph import App, histories

Commit = tuple[str, int]
"""A stage and a version."""


def the_line(app: App) -> tuple[list[Manifest], list[int]]:
    """Return the line by its definition, computed from all manifests, with the effective times."""
    everything = {
        (stage, version): history.read(app.store, "app", stage, version)
        for stage, head in app.heads.items()
        for version in range(1, head.version + 1)
    }

    @cache
    def effective_ms(commit: Commit) -> int:
        stage, version = commit
        later = [(stage, version + 1)] if (stage, version + 1) in everything else []
        later += [other for other, m in everything.items() if consumed_versions(m).get(stage, 0) >= version]
        return min([everything[commit].time_ms, *(effective_ms(each) for each in later)])

    ranks = {stage: rank for rank, stage in enumerate(topological_order(app.heads))}
    line = sorted(everything, key=lambda commit: (effective_ms(commit), ranks[commit[0]], commit[1]))
    return [everything[commit] for commit in line], [effective_ms(commit) for commit in line]


def prefix(line: list[Manifest], length: int) -> dict[str, int]:
    """Return the newest version of each stage among the line's first commits."""
    return {commit.stage: commit.version for commit in line[:length]}


def at(moment: AtTime | CommitsBack | AtVersion, stage: str = "") -> Ref:
    return Ref(text="app@then", app="app", stage=stage, moment=moment)


@scaled(50, in_ci=500)
@given(histories())
def test_the_line_extends_causality_so_every_prefix_is_a_consistent_cut(app: App) -> None:
    line, _ = the_line(app)
    seen: dict[str, Manifest] = {}
    for commit in line:
        assert commit.version == (seen[commit.stage].version if commit.stage in seen else 0) + 1
        seen[commit.stage] = commit
        assert violations(seen) == ()


@scaled(50, in_ci=500)
@given(histories())
def test_a_version_of_a_stage_is_the_prefix_ending_with_it_so_neighbours_differ_by_one_commit(app: App) -> None:
    line, _ = the_line(app)
    for number, commit in enumerate(line, 1):
        cut = cut_of_ref(app.store, at(AtVersion(commit.version), commit.stage))
        assert cut.versions == prefix(line, number)


@scaled(50, in_ci=500)
@given(histories())
def test_a_time_is_the_prefix_of_all_commits_effective_by_then(app: App) -> None:
    line, times = the_line(app)
    for time_ms in sorted({time_ms + by for time_ms in times for by in (0, -1, 1)} - {min(times) - 1}):
        expected = prefix(line, sum(each <= time_ms for each in times))
        assert cut_of_ref(app.store, at(AtTime(time_ms))).versions == expected
        for stage in expected:
            assert cut_of_ref(app.store, at(AtTime(time_ms), stage)).versions == expected
    assert resolve(app.store, "app", now_ms=0).versions == prefix(line, len(line))


@scaled(50, in_ci=500)
@given(histories())
def test_the_log_is_the_line_in_reverse(app: App) -> None:
    line, _ = the_line(app)
    shown = [(entry.stage, entry.version) for entry in log_entries(app.store, "app", 1_000)]
    assert shown == [(commit.stage, commit.version) for commit in reversed(line)]
    for stage in app.heads:
        own = [entry.version for entry in log_entries(app.store, "app", 1_000, stage=stage)]
        assert own == [commit.version for commit in reversed(line) if commit.stage == stage]


def test_senders_with_the_same_effective_time_are_ordered_by_name() -> None:
    app = App({"a": (), "b": (), "c": ("a", "b")}, {"a": 0, "b": 0, "c": -35})
    for stage in "bac":
        app.step(stage, [7, 7])
    line, times = the_line(app)
    assert ([commit.stage for commit in line], len(set(times))) == (["a", "b", "c"], 1)
    assert [entry.stage for entry in log_entries(app.store, "app", 9)] == ["c", "b", "a"]


@scaled(50, in_ci=500)
@given(histories())
def test_steps_back_are_counted_on_the_line(app: App) -> None:
    line, _ = the_line(app)
    with_data = [number for number, commit in enumerate(line) if any(source.rows for source in commit.inputs.values())]
    for back, number in enumerate(reversed(with_data)):
        assert cut_of_ref(app.store, at(CommitsBack(back))).versions == prefix(line, number + 1)


@scaled(50, in_ci=500)
@given(histories(), st.data())
def test_positions_prefixes_and_neighbours_are_found_without_reading_the_whole_line(
    app: App, data: st.DataObject
) -> None:
    line, times = the_line(app)
    found = read_line(app.store, "app")
    low = data.draw(st.integers(0, len(line) - 1))
    above = found.above(Cut("app", {commit.stage: commit for commit in line[:low]}))
    for number, commit in enumerate(line):
        assert found.sort_key(commit)[0] == times[number]
        assert found.prefix_before(commit).versions == prefix(line, number)
        assert found.last_commit(found.prefix_up_to(commit)) == commit
        if number >= low:
            assert above.sort_key(commit) == found.sort_key(commit)
            assert above.prefix_up_to(commit).versions == prefix(line, number + 1)
            assert above.prefix_before(commit).versions == prefix(line, number)


@scaled(50, in_ci=500)
@given(histories(), st.data())
def test_any_cut_lies_between_its_two_nearest_prefixes(app: App, data: st.DataObject) -> None:
    line, _ = the_line(app)
    versions = {stage: data.draw(st.integers(0, head.version)) for stage, head in app.heads.items()}
    held = {stage: history.read(app.store, "app", stage, version) for stage, version in versions.items() if version}
    found, cut = read_line(app.store, "app"), Cut("app", held)
    inside = [commit.version <= versions[commit.stage] for commit in line]
    assert found.longest_prefix_within(cut).versions == prefix(
        line, inside.index(False) if False in inside else len(line)
    )
    assert found.shortest_prefix_around(cut).versions == prefix(
        line, len(line) - inside[::-1].index(True) if any(inside) else 0
    )


def test_a_time_written_as_text_names_the_same_prefix() -> None:
    app = App({"a": (), "b": ("a",)}, {"a": 35, "b": 0})
    for stage in "abab":
        app.step(stage, [1, 1])
    line, times = the_line(app)
    # What b consumed was sent by a clock that is ahead: it is pulled forward to b's commit.
    assert [(commit.stage, commit.version) for commit in line] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    for number, time_ms in enumerate(times):
        if times.count(time_ms) == 1 or number % 2:
            text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
            assert resolve(app.store, f"app@{text}", now_ms=10**9).versions == prefix(line, number + 1)
