"""Kinds of versions: the store behaves as each kind declares about fencing, succession, and the log."""

from typing import get_args

import pytest
from slackwater.errors import Fenced, NotFound, Refused
from slackwater.snapshot.take import audit_log
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.kinds import KINDS, Traits, VersionKind
from slackwater.store.versions.manifest import Manifest

from tests.support.manifests import claim

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
followers = [kind for kind in KINDS.values() if not kind.retires and not kind.begins]
"""Kinds that a batch may follow, and that need a previous version."""


def committed(store: MemoryStore, kind: Traits, by: str) -> Manifest:
    return amend(store, ("app", "stage"), Amendment(kind.name), by=by, now_ms=2).manifest


def test_every_kind_of_version_is_declared() -> None:
    assert set(KINDS) == set(get_args(VersionKind))


@pytest.mark.parametrize("kind", followers, ids=lambda kind: kind.name)
def test_a_writer_can_commit_after_a_version_unless_its_kind_fences(kind: Traits) -> None:
    store = MemoryStore()
    first = claim(store, "app", "stage", writer="w", by="host:w", now_ms=1)
    after = committed(store, kind, "somebody")

    def next_batch() -> None:
        commit(store, successor(after, kind="batch", epoch=first.epoch, writer="w", by="host:w", now_ms=3))

    if kind.fences:
        with pytest.raises(Fenced, match=kind.fate) as told:
            next_batch()
        assert told.value.hint
        assert after.epoch == first.epoch + 1
    else:
        next_batch()
        assert after.epoch == first.epoch


@every_kind
def test_only_kinds_that_may_begin_a_stage_are_first_versions(kind: Traits) -> None:
    store = MemoryStore()
    if kind.may_begin:
        assert committed(store, kind, "somebody").version == 1
    else:
        with pytest.raises(NotFound):
            committed(store, kind, "somebody")


@every_kind
def test_only_kinds_that_bring_a_stage_back_follow_its_retirement(kind: Traits) -> None:
    store = MemoryStore()
    claim(store, "app", "stage", writer="w", by="host:w", now_ms=1)
    committed(store, KINDS["retire"], "somebody")
    if kind.follows_retiring:
        assert committed(store, kind, "somebody").kind == kind.name
    else:
        with pytest.raises(Refused, match="is retired since v2"):
            committed(store, kind, "somebody")


@every_kind
def test_the_log_of_operations_has_verbs_for_each_kind_not_committed_by_runners(kind: Traits) -> None:
    assert set(kind.verbs) <= set(audit_log.VERBS)
    assert bool(kind.verbs) != kind.by_runner


@every_kind
def test_kinds_that_may_occur_between_batches_do_not_fence(kind: Traits) -> None:
    assert not (kind.beside_batches and kind.fences)
