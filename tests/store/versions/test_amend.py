"""Amendments of a stage check their precondition and compute their change on the version that they follow."""

import pytest
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Fenced, NotFound, Refused
from slackwater.store.objects.counting import Stats
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions.amend import Amendment, amend, commit_first, read_base
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.horizon import BOUNDARIES, Boundary
from slackwater.store.versions.manifest import Input, Manifest

from tests.support.manifests import claim


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    claim(store, "app", "stage", writer="w", by="host:w", now_ms=1)
    return store


def head(store: MemoryStore) -> Manifest:
    found = read_base(store, "app", "stage")
    assert found is not None
    return found


def batch(store: MemoryStore) -> Manifest:
    before = head(store)
    at = before.inputs.get("t", Input("t", (0,)))
    draft = successor(before, kind="batch", epoch=before.epoch, writer=before.writer, by=before.by, now_ms=1)
    made = replace(draft, inputs={"t": replace(at, offsets=(at.offsets[0] + 1,), rows=1)})
    commit(store, made)
    return made


def test_after_a_lost_race_the_precondition_and_the_change_apply_to_the_winning_version(store: MemoryStore) -> None:
    known, asked = head(store), []

    def slip_in(found: Manifest) -> bool:
        asked.append(found.version)
        if len(asked) == 1:
            batch(store)
        return True

    made = amend(store, known, Amendment("compaction", requires=slip_in), by="c", now_ms=1)
    assert asked == [1, 2]
    assert (made.previous, made.manifest, made.changed) == (
        replace(known, version=2, kind="batch", time_ms=2, inputs={"t": Input("t", (1,), rows=1)}),
        head(store),
        True,
    )
    assert made.manifest.inputs == {"t": Input("t", (1,))}, "what the batch read is carried on, and not that it did"


@pytest.mark.parametrize(
    ("kind", "epoch"), [("batch", 1), ("compaction", 1), ("rescale", 2), ("retire", 2), ("claim", 2)]
)
def test_only_some_kinds_fence_the_stages_writer(store: MemoryStore, kind: str, epoch: int) -> None:
    made = amend(store, ("app", "stage"), Amendment(kind), by="x", now_ms=1)  # type: ignore[arg-type]
    assert made.manifest.epoch == epoch


def test_a_change_with_nothing_left_to_do_commits_nothing(store: MemoryStore) -> None:
    known = head(store)
    made = amend(store, known, Amendment("rescale", requires=lambda _head: False), by="x", now_ms=1)
    assert not made.changed
    assert made.manifest == head(store) == known


def test_a_forbidden_change_is_refused_before_it_is_made(store: MemoryStore) -> None:
    def requires(_head: Manifest) -> bool:
        raise Refused("not this one")

    with pytest.raises(Refused, match="not this one"):
        amend(store, head(store), Amendment("rescale", requires=requires), by="x", now_ms=1)
    assert head(store).version == 1


def test_only_a_claim_begins_a_stage(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="other"):
        amend(store, ("app", "other"), Amendment("rescale"), by="x", now_ms=1)


def test_a_fenced_writer_tries_only_once(store: MemoryStore) -> None:
    known, tries = head(store), []
    claim(store, "app", "stage", writer="n", by="host:n", now_ms=1)
    change = Amendment("batch", requires=lambda found: not tries.append(found.version), epoch=known.epoch)
    with pytest.raises(Fenced, match="epoch 2, written by host:n"):
        amend(store, known, change, by="x", now_ms=1)
    assert tries == [1]


def test_each_attempt_counts_all_requests_so_far(store: MemoryStore) -> None:
    known = head(store)

    def taken() -> Stats:
        if head(store) == known:
            batch(store)
        return Stats(gets=1)

    made = amend(store, known, Amendment("compaction", cost=Stats(gets=40)), by="x", now_ms=1, take_stats=taken)
    assert made.manifest.version == 3
    assert made.manifest.stats == made.manifest.totals == Stats(gets=42)


def test_only_one_of_two_first_versions_is_committed_and_another_kind_conflicts(store: MemoryStore) -> None:
    first = Manifest("app", "new", 7, 1, "a", 5, "clone")
    assert commit_first(store, first)
    assert not commit_first(store, replace(first, writer="b"))
    with pytest.raises(CommitConflict):
        commit_first(store, replace(first, writer="b", kind="claim"))


def test_a_paused_writer_whose_stage_was_removed_is_fenced(store: MemoryStore) -> None:
    gone, known = MemoryStore(), head(store)
    with pytest.raises(Fenced, match="v1 is gone"):
        read_base(gone, "app", "stage", known)


def test_a_boundary_replaced_since_the_listing_is_looked_up_again() -> None:
    class Replaced(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            if key == BOUNDARIES.key(Boundary(1, True), "app") and not self.counted:
                self.counted = True
                BOUNDARIES.put(self, Boundary(2, True), "app")
                BOUNDARIES.remove(self, 1, "app")
            return super().get_range(key, start, length)

        counted = False

    replaced = Replaced()
    assert BOUNDARIES.add(replaced, Boundary(1, True), "app") == Boundary(1, True)
    assert BOUNDARIES.newest(replaced, "app") == Boundary(2, True)
    assert BOUNDARIES.add(replaced, Boundary(2, False), "app") == Boundary(2, True)
