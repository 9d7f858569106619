"""The error of a writer whose stage another one has taken: it names the other writer and the next step."""

from typing import Literal

import pytest
from slackwater.errors import Fenced, Refused
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import keys
from slackwater.store.versions.commit import check_version_exists, commit, retired_error, successor
from slackwater.store.versions.manifest import Manifest

from tests.support.manifests import claim


def claimed(store: MemoryStore, *, by: str = "", kind: Literal["claim", "rescale", "retire"] = "claim") -> Manifest:
    return claim(store, "app", "stage", writer="w", by=by, now_ms=1, kind=kind)


def next_of(head: Manifest) -> Manifest:
    return successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by=head.by, now_ms=2)


@pytest.mark.parametrize(
    ("kind", "done", "hint"),
    [
        ("claim", "taken over", "let the newer runner continue, or stop it and start this one again"),
        ("rescale", "rescaled", "start this one again: it continues with the new number of state partitions"),
        ("retire", "retired", "remove it from the program; a program that has it again continues where it stopped"),
    ],
)
def test_the_error_of_a_fenced_writer_says_what_was_done_by_whom_and_what_to_do(
    kind: Literal["claim", "rescale", "retire"], done: str, hint: str
) -> None:
    store = MemoryStore()
    mine = claimed(store, by="old:1")
    claimed(store, by="new:2", kind=kind)
    with pytest.raises(Fenced) as caught:
        commit(store, next_of(mine))
    assert str(caught.value) == (
        f"stage app/stage was {done}: v2 has epoch 2, written by new:2; this writer has epoch 1 and must stop"
    )
    assert (caught.value.version, caught.value.hint) == (2, f"nothing committed is lost; {hint}")


def test_a_writer_without_a_name_is_shown_by_its_id() -> None:
    store = MemoryStore()
    mine = claimed(store)
    claimed(store)
    with pytest.raises(Fenced, match="v2 has epoch 2, written by writer w; this writer has epoch 1"):
        commit(store, next_of(mine))


def test_a_writer_whose_app_was_removed_is_told_that_its_version_no_longer_exists() -> None:
    store = MemoryStore()
    mine = claimed(store)
    check_version_exists(store, mine, 1)
    store.delete(keys.manifest("app", "stage", 1))
    with pytest.raises(Fenced) as caught:
        check_version_exists(store, mine, 1)
    assert str(caught.value) == (
        "stage app/stage was removed, or taken over long ago: its v1 is gone; this writer must stop"
    )
    assert caught.value.version == 1
    assert caught.value.hint == "`slackwater status app` shows if the app still exists"


def test_only_a_claim_can_follow_the_version_that_retires_a_stage() -> None:
    store = MemoryStore()
    claimed(store)
    retired = claimed(store, kind="retire")
    assert retired.retired
    with pytest.raises(Refused, match="retired since v2"):
        next_of(retired)
    with pytest.raises(Refused, match="retired since v2"):
        claimed(store, kind="rescale")
    assert not claimed(store).retired


def test_the_error_for_a_retired_stage_says_how_to_bring_it_back() -> None:
    store = MemoryStore()
    claimed(store)
    refused = retired_error(claimed(store, kind="retire"))
    assert isinstance(refused, Refused)
    assert str(refused) == "stage app/stage is retired since v2: it cannot be changed"
    assert refused.hint == "to bring it back, run a program that has the stage: slackwater run FILE"
