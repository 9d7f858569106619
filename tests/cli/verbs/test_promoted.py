"""Verbs after a promotion: the meaning of names, clones, protection, removal of both apps."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from slackwater.client.show import snapshots
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import CloneTerms
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, codec, keys

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.operations.staging.promote.test_promote import World

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def world(isolated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Promote `s` over `p`, which has another clone, `other`; the time to live of clone `s` has passed."""
    world = World(Random(1), open_store(str(tmp_path / "store")))
    monkeypatch.setenv("SLACKWATER_KAFKA", world.kafka.properties["bootstrap.servers"])
    codec.put(world.store, keys.app_info("s"), replace(apps.read_app(world.store, "s"), ttl_ms=1))
    clone(world.store, "p", "other", channels=KafkaChannels(world.kafka), by="t", terms=CloneTerms(owner="ada"))
    world.start("s")
    world.promote("p", "s", calm=True)
    yield world
    world.close()


def refused(*words: str, code: int = 1) -> str:
    result = slackwater(*words)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr


@pytest.mark.usefixtures("world")
def test_a_promoted_app_is_neither_removed_nor_recreated_under_any_of_its_names() -> None:
    for called in ("p", "s"):
        for words in (("app", "rm"), ("clone", "rm"), ("clone", "refresh")):
            for dry_run in ((), ("--dry-run",)):
                said = refused(*words, called, *dry_run)
                assert "cannot remove or recreate s: it serves as p since its promotion" in said
                assert "give the name back first (slackwater promote --back --over p)" in said
    assert "app 'other' is a clone that still uses files of p" in refused("app", "rm", "p~1", "--fence", "--dry-run")
    forced = done("app", "rm", "p~1", "--fence", "--force", "--dry-run")
    assert forced.startswith("would remove p~1 (folder p): 2 stages")
    assert "done already" in done("promote", "s", "--over", "p")


def test_clones_are_listed_by_their_current_names_and_a_promoted_clone_does_not_expire(world: World) -> None:
    listed = done("clone", "list")
    assert "is p since a promotion" in listed
    assert "p~1@clone-other" in listed
    found = {each["name"]: each for each in from_json("clone", "list")["clones"]}
    assert [(name, found[name]["called"], found[name]["expired"]) for name in ("other", "s")] == [
        ("other", "", False),
        ("s", "p", False),
    ]
    assert done("clone", "rm", "--expired") == "s stays: it is p since a promotion\n"
    assert {each["name"] for each in from_json("clone", "list", "p~1")["clones"]} == {"other", "s"}
    assert "no clone of p is known" in done("clone", "list", "p")
    world.promote("p", "", calm=True)
    assert "is p since" not in done("clone", "list")
    gone = slackwater("clone", "rm", "--expired", "--dry-run", "--fence")
    assert gone.stdout.startswith("would remove s: ")


def test_refresh_recreates_a_clone_from_the_app_that_has_its_sources_name(world: World) -> None:
    assert done("clone", "refresh", "other", "--fence", "--dry-run").startswith(
        "would recreate other from p (folder s), "
    )
    world.promote("p", "", calm=True)
    assert done("clone", "refresh", "other", "--fence", "--dry-run").startswith("would recreate other from p, ")


def test_protection_belongs_to_the_name_and_requires_the_name_as_typed(world: World) -> None:
    done("protect", "p", "--message", "production")
    assert done("protect", "s").startswith("done already: p is protected by ")
    said = refused("rewind", "p@-1h")
    assert "app 'p' is protected, by " in said
    assert "to rewind it, give its name once more: --yes-really p\n" in said
    assert "production; 'q' is not its name" in refused("rewind", "p@-1h", "--yes-really", "q")
    assert "is protected" not in slackwater("rewind", "p@-1h", "--yes-really", "p").stderr
    assert "is protected" not in slackwater("rewind", "p@-1h", "--yes-really", "s").stderr
    # The old app keeps its own name, which is p~1; the name p belongs to the other app.
    for typed in ("p", "s"):
        assert f"{typed!r} is not its name" in refused("app", "rm", "p~1", "--yes-really", typed)
    assert "protecting a name covers both apps" in refused("protect", "p~1", "--off", "--yes-really", "p~1")
    assert "done already: the app in folder s has the name p" in done("promote", "s", "--over", "p")
    assert "to give the name back, give its name once more: --yes-really p" in refused(
        "promote", "--back", "--over", "p"
    )
    world.promote("p", "", calm=True)
    assert "app 's' is protected" not in slackwater("clone", "rm", "s", "--dry-run").stderr
    assert "app 'p' is protected" in refused("retire", "p/alerts")
    assert done("protect", "p", "--off", "--yes-really", "p") == "p is no longer protected\n"
    assert done("protect", "s", "--off") == "done already: s is not protected\n"


def test_output_uses_the_names_that_users_type_next(world: World) -> None:
    titles = [line for line in done("status").splitlines() if "  created " in line]
    assert [title.partition("  ")[0] for title in titles] == ["other", "p~1 (folder p)", "p (folder s)"]
    logged = "\n".join(each["detail"] for each in from_json("log", "p", "--operations", "--verb", "promote"))
    assert logged == "the app in folder s over p, until then the one in folder p"
    said = refused("promote", "p", "--over", "s")
    assert "p and s are the same app, in folder s" in said
    assert "slackwater promote --back --over p gives the name back" in said
    assert "give either STAGING or --back" in refused("promote", "s", "--back", "--over", "p", code=2)
    back = world.promote("p", "", calm=True)
    shown = repr(snapshots.promotion_result(back, with_values=False, dry_run=False))
    assert "p is now the app in folder p, and p~1 the one in folder s, whose runner stops" in shown
    assert "to undo: slackwater promote s --over p, while p~1 runs, without publishing" in shown
