"""Bisect finds the first bad commit of the app's line, for any graph of stages with different clocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.moments import later_stages
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.manifest import Manifest

from tests.models.profiles import scaled
from tests.snapshot.cut.test_graph import App, histories
from tests.snapshot.cut.test_line import prefix, the_line

Rows = Mapping[str, int]
"""Keys of one table, each with the version that last wrote it."""
Kinds = Mapping[str, tuple[str, Callable[[Rows, Rows, int, int], bool]]]
"""Predicates over two tables, in SQL and in Python."""

GROWING: Kinds = {
    "either": (
        "SELECT key FROM {a} WHERE n >= {x} UNION ALL SELECT key FROM {b} WHERE n >= {y}",
        lambda a, b, x, y: max(a.values(), default=0) >= x or max(b.values(), default=0) >= y,
    ),
    "joined": (
        "SELECT key FROM {a} JOIN {b} USING (key) WHERE {a}.n + {b}.n >= {x} + {y}",
        lambda a, b, x, y: any(a[key] + b[key] >= x + y for key in a.keys() & b.keys()),
    ),
    "both": (
        "SELECT 1 FROM {a}, {b} WHERE {a}.n >= {x} AND {b}.n >= {y}",
        lambda a, b, x, y: max(a.values(), default=0) >= x and max(b.values(), default=0) >= y,
    ),
    "counted": (
        "SELECT c FROM (SELECT count(*) AS c FROM (FROM {a} UNION ALL FROM {b})) WHERE c >= {x}",
        lambda a, b, x, y: len(a) + len(b) >= x,
    ),
}
"""Predicates that stay true once they are true."""
UNSTEADY: Kinds = {
    "thirds": (
        "SELECT key FROM {a} JOIN {b} USING (key) WHERE ({a}.n + {b}.n) % 3 = {x} % 3",
        lambda a, b, x, y: any((a[key] + b[key]) % 3 == x % 3 for key in a.keys() & b.keys()),
    ),
    "apart": (
        "SELECT 1 WHERE (SELECT count(*) FROM {a}) <> (SELECT count(*) FROM {b})",
        lambda a, b, x, y: len(a) != len(b),
    ),
}
"""Predicates that change back and forth."""

# Each example writes and reads Parquet some dozens of times.
many = settings(scaled(12), suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Asked:
    """A predicate over two tables of an app, and its truth at each prefix of the line."""

    sql: str
    first_bad: int
    """First commit of the line at which the predicate returns rows; if there is none, the number of commits."""
    is_bad: tuple[bool, ...]
    """For each commit of the line, True if the predicate returns rows."""


def asked(app: App, line: list[Manifest], kinds: Kinds, data: st.DataObject) -> Asked:
    """Draw a predicate over tables of this app, and evaluate it at each prefix of its line."""
    a, b = (data.draw(st.sampled_from(sorted(app.heads))) for _ in range(2))
    assume(a != b)
    x, y = (data.draw(st.integers(1, 4)) for _ in range(2))
    sql, holds = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    tables: dict[str, dict[str, int]] = {stage: {} for stage in app.heads}
    is_bad = []
    for commit in line:
        tables[commit.stage] |= dict.fromkeys(app.written[commit.stage, commit.version], commit.version)
        is_bad.append(holds(tables[a], tables[b], x, y))
    return Asked(sql.format(a=a, b=b, x=x, y=y), [*is_bad, True].index(True), tuple(is_bad))


def typed(app: App, cache: SstCache, ref: str, sql: str) -> bool:
    """True if `slackwater query REF SQL` prints rows."""
    cut = resolve(app.store, ref, now_ms=app.now_ms)
    return run_statement(app.store, cache, cut, sql, later=later_stages(app.store, cut)).num_rows > 0


def ref_of(commit: Manifest) -> str:
    return f"app/{commit.stage}@v{commit.version}"


@many
@given(histories(tables=True), st.data())
def test_the_first_commit_of_the_line_at_which_the_predicate_returns_rows_is_named(
    cache: SstCache, app: App, data: st.DataObject
) -> None:
    line, _ = the_line(app)
    predicate = asked(app, line, GROWING, data)
    sql, first = predicate.sql, predicate.first_bad
    if first == len(line):
        with pytest.raises(Refused, match="no rows at app@now"):
            bisect(app.store, cache, "app", sql)
        return
    verdict = bisect(app.store, cache, "app", sql)
    assert verdict.bad_ref == ref_of(line[first])
    assert verdict.good_ref == (ref_of(line[first - 1]) if first else "")
    assert (verdict.good.versions, verdict.bad.versions) == (prefix(line, first), prefix(line, first + 1))
    assert typed(app, cache, verdict.bad_ref, sql)
    assert not verdict.good_ref or not typed(app, cache, verdict.good_ref, sql)
    assert verdict.non_monotone == ()
    for step in verdict.steps:
        if step.ref:
            assert resolve(app.store, step.ref, now_ms=0).versions == step.cut.versions
            assert typed(app, cache, step.ref, sql) == step.bad


@many
@given(histories(tables=True), st.data())
def test_if_a_history_went_bad_repeatedly_the_verdict_is_between_a_good_and_a_bad_cut(
    cache: SstCache, app: App, data: st.DataObject
) -> None:
    line, _ = the_line(app)
    predicate = asked(app, line, UNSTEADY, data)
    if not predicate.is_bad[-1]:
        with pytest.raises(Refused, match="no rows at app@now"):
            bisect(app.store, cache, "app", predicate.sql)
        return
    verdict = bisect(app.store, cache, "app", predicate.sql)
    refs = list(map(ref_of, line))
    number = refs.index(verdict.bad_ref)
    assert predicate.is_bad[number]
    assert typed(app, cache, verdict.bad_ref, predicate.sql)
    assert verdict.good_ref == (refs[number - 1] if number else "")
    if number:
        assert not predicate.is_bad[number - 1]
        assert not typed(app, cache, verdict.good_ref, predicate.sql)


@many
@given(histories(tables=True), st.data())
def test_snapshots_as_ends_are_moved_to_prefixes_of_the_line(cache: SstCache, app: App, data: st.DataObject) -> None:
    line, _ = the_line(app)
    predicate = asked(app, line, GROWING, data)
    good, bad = sorted(data.draw(st.tuples(*[st.integers(1, len(line))] * 2)))
    for name, length in (("good", good), ("bad", bad)):
        pin_cut(app.store, Cut("app", {commit.stage: commit for commit in line[:length]}), name)
    first = predicate.first_bad
    if good <= first < bad:
        verdict = bisect(app.store, cache, "app", predicate.sql, good="app@good", bad="app@bad")
        assert verdict.bad_ref == ref_of(line[first])
    else:
        with pytest.raises(Refused, match="already at app@good" if first < bad else "no rows at app@bad"):
            bisect(app.store, cache, "app", predicate.sql, good="app@good", bad="app@bad")
