"""After skips, the same candidates remain as with git's bisect."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused
from slackwater.snapshot.bisect.predicate import Context, Skip
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Answer, Verdict
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table

from tests.models.profiles import scaled
from tests.support.histories import write_columns

VERSIONS = 20


@dataclass(frozen=True)
class Oracle:
    """Predicate with fixed answers for the versions of a stage."""

    answers: Mapping[int, str]
    text: str = "the oracle"
    sql: str = ""
    reads_channels: bool = True
    inputs: frozenset[str] = frozenset()

    def tables(self, cut: Cut) -> frozenset[str]:
        return frozenset(cut.tables)

    def names_table(self, table: str) -> bool:
        return False

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        version = at.cut.stages["s"].version if "s" in at.cut.stages else 0
        match self.answers.get(version, "good"):
            case "skip" | "lacks" as answer:
                raise Skip("nobody knows", is_column_missing=answer == "lacks")
            case answer:
                return pa.table({"wrong": ["so it is"] if answer == "bad" else pa.array([], pa.string())})


def linear(versions: int = VERSIONS, *, since: int = 0) -> MemoryStore:
    """Return a store with an app whose only stage reads one record per version.

    The stage's table is empty. From version `since` on, it has the column `extra`.
    """
    store = MemoryStore()
    apps.create_app(store, AppInfo("app", 1))
    for version in range(1, versions + 1):
        inputs = {"t": Input("t", (version,), rows=1)}
        names = ("n", "extra") if version >= since else ("n",)
        table = Table((Column("key", "string"),), tuple(Column(name, "int64") for name in names), 1)
        commit(store, Manifest("app", "s", version, 1, "w", 1_000 * version, "batch", inputs=inputs, table=table))
    return store


def answers(first_bad: int, skips: frozenset[int], versions: int = VERSIONS) -> dict[int, Answer]:
    said: dict[int, Answer] = {v: "bad" if v >= first_bad else "good" for v in range(1, versions + 1)}
    return said | dict.fromkeys(skips - {1, versions}, "skip")


def candidates(verdict: Verdict) -> set[int]:
    if not verdict.candidates:
        return {verdict.bad_version}
    return {version for each in verdict.candidates for version in range(each.first, each.last + 1)}


class Git:
    """A git repository with a commit for each version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self("init", "-q")
        stream = "".join(
            f"commit refs/heads/main\nmark :{v}\ncommitter t <t@t> {v} +0000\ndata {len(str(v))}\n{v}\n"
            + (f"from :{v - 1}\n" if v > 1 else "")
            for v in range(1, VERSIONS + 1)
        )
        self("fast-import", "--quiet", text=stream)
        self.commits = dict(enumerate(self("rev-list", "--reverse", "main").split(), 1))

    def __call__(self, *words: str, text: str = "", check: bool = True) -> str:
        ran = subprocess.run(
            ["git", "-c", "init.defaultBranch=main", *words],
            cwd=self.folder,
            input=text,
            text=True,
            capture_output=True,
            check=check,
        )
        return ran.stdout

    def left(self, said: Mapping[int, Answer], known: list[int]) -> set[int]:
        """Return the candidates that `git bisect` leaves after some commits were marked."""
        self("bisect", "reset", check=False)
        self("bisect", "start", "--no-checkout", self.commits[VERSIONS], self.commits[1])
        for version in known:
            self("bisect", said[version], self.commits[version], check=False)
        (self.folder / "said").write_text("".join(f"{v} {answer}\n" for v, answer in said.items()))
        script = (
            'said=$(grep "^$(git log -1 --format=%s BISECT_HEAD) " said); '
            'case "$said" in *good) ;; *bad) exit 1;; *) exit 125;; esac'
        )
        if len(self._range()) > 1:
            self("bisect", "run", "sh", "-c", script, check=False)
        return {version for version, commit in self.commits.items() if commit in self._range()}

    def _range(self) -> list[str]:
        good = self("for-each-ref", "--format=^%(refname)", "refs/bisect/good-*").split()
        return self("rev-list", "refs/bisect/bad", *good).split()


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    if shutil.which("git") is None:
        pytest.skip("git is not on PATH")
    return Git(tmp_path_factory.mktemp("git"))


@settings(scaled(5), suppress_health_check=list(HealthCheck))
@given(
    first_bad=st.integers(2, VERSIONS),
    skips=st.frozensets(st.integers(2, VERSIONS - 1), max_size=12),
    known=st.lists(st.integers(2, VERSIONS - 1), unique=True, max_size=4),
)
def test_the_same_candidates_remain_as_with_git_bisect(
    cache: SstCache, git: Git, first_bad: int, skips: frozenset[int], known: list[int]
) -> None:
    said = answers(first_bad, skips)
    marks = {f"app/s@v{version}": said[version] for version in known}
    verdict = bisect(linear(), cache, "app", Oracle(said), good="app/s@v1", known_answers=marks)
    assert candidates(verdict) == git.left(said, known)


@scaled(30)
@given(
    first_bad=st.integers(2, VERSIONS),
    skips=st.frozensets(st.integers(2, VERSIONS - 1)),
    since=st.integers(1, VERSIONS - 1),
)
def test_candidates_lie_between_the_last_good_and_the_first_bad_judgeable_version(
    cache: SstCache, first_bad: int, skips: frozenset[int], since: int
) -> None:
    said = answers(first_bad, skips)
    lacking = dict.fromkeys(range(1, since), "lacks")  # a column came, and stayed
    verdict = bisect(linear(since=since), cache, "app", Oracle({**said, **lacking}))
    good = max((version for version in range(since, first_bad) if said[version] == "good"), default=1)
    bad = min(version for version in range(since, VERSIONS + 1) if said[version] == "bad")
    assert candidates(verdict) == set(range(good + 1, bad + 1))
    assert (verdict.good.versions, verdict.bad.versions) == ({"s": good}, {"s": bad})


def test_a_column_added_late_does_not_cost_an_evaluation_per_earlier_version(cache: SstCache) -> None:
    store = linear(1_024, since=800)
    lacking = dict.fromkeys(range(1, 800), "lacks")
    verdict = bisect(store, cache, "app", Oracle({**answers(900, frozenset(), 1_024), **lacking}))
    assert candidates(verdict) == {900}
    assert verdict.evaluations <= 24
    verdict = bisect(store, cache, "app", Oracle({**answers(800, frozenset(), 1_024), **lacking}))
    assert candidates(verdict) == set(range(2, 801))
    assert verdict.evaluations <= 24


@pytest.mark.parametrize("first_bad", [2, 3, 512, 777, 1_024])
def test_1024_versions_take_at_most_11_evaluations(cache: SstCache, first_bad: int) -> None:
    app, store = "app", MemoryStore()
    apps.create_app(store, AppInfo(app, 1))
    table = Table((Column("key", "string"),), (Column("n", "int64"),), 1)
    ssts: tuple[object, ...] = ()
    for version in range(1, 1_025):
        if version in (2, first_bad):
            columns = {"n": pa.array([version]).to_numpy()}
            ssts = tuple(write_columns(store, app, "s", version, pa.array(["k"]), columns, table=table))
        manifest = Manifest(app, "s", version, 1, "w", 1_000 * version, "claim" if version == 1 else "batch")
        inputs = {"t": Input("t", (version,), rows=1)}
        commit(store, Manifest(**{**_fields(manifest), "inputs": inputs, "table": table, "ssts": ssts}))
    verdict = bisect(store, cache, app, f"FROM s WHERE n >= {first_bad}")
    assert verdict.bad_version == first_bad
    assert verdict.evaluations <= 11


def _fields(manifest: Manifest) -> dict[str, object]:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}


def test_a_bad_end_that_cannot_be_judged_is_refused_with_the_reason(cache: SstCache) -> None:
    with pytest.raises(Refused, match="the bad end app@now cannot be judged: nobody knows"):
        bisect(linear(), cache, "app", Oracle({VERSIONS: "skip"}))


def test_known_answers_that_contradict_each_other_are_refused(cache: SstCache) -> None:
    marks: dict[str, Answer] = {"app/s@v5": "bad", "app/s@v9": "good"}
    with pytest.raises(Refused, match="app/s@v9 is good and app/s@v5 is bad, but the bad moment is not after"):
        bisect(linear(), cache, "app", Oracle(answers(5, frozenset())), known_answers=marks)


def test_edge_selects_the_first_or_last_of_several_changes(cache: SstCache) -> None:
    said: dict[int, Answer] = dict.fromkeys(range(1, 101), "good")
    said |= dict.fromkeys([*range(20, 45), *range(80, 101)], "bad")
    first, last = (bisect(linear(100), cache, "app", Oracle(said), edge=edge) for edge in ("first", "last"))
    assert (first.bad_version, last.bad_version) == (20, 80)
    assert first.non_monotone
    assert last.non_monotone
    assert {step.answer for step in first.non_monotone} == {"good"}
    assert {step.answer for step in last.non_monotone} == {"bad"}


def test_versions_before_a_column_existed_are_skipped_with_the_reason(cache: SstCache) -> None:
    store = MemoryStore()
    apps.create_app(store, AppInfo("app", 1))
    for version in range(1, 13):
        names = ("n", "extra") if version >= 5 else ("n",)
        table = Table((Column("key", "string"),), tuple(Column(name, "int64") for name in names), 1)
        columns = dict.fromkeys(names, pa.array([version]).to_numpy())
        ssts = write_columns(store, "app", "s", version, pa.array(["k"]), columns, table=table)
        inputs = {"t": Input("t", (version,), rows=1)}
        manifest = Manifest("app", "s", version, 1, "w", 1_000 * version, "batch", inputs=inputs)
        commit(store, Manifest(**{**_fields(manifest), "table": table, "ssts": tuple(ssts)}))
    verdict = bisect(store, cache, "app", "FROM s WHERE extra >= 9")
    assert (verdict.bad_version, verdict.candidates) == (9, ())
    verdict = bisect(store, cache, "app", "FROM s WHERE extra >= 3")
    assert candidates(verdict) == set(range(1, 6))
    assert any("extra" in step.why for step in verdict.steps if step.answer == "skip")
    with pytest.raises(NotFound, match="extra"):
        bisect(store, cache, "app", "FROM s WHERE extra >= 3", bad="app/s@v3")
