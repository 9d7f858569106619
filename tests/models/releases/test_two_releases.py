"""Two releases on one store: the older release reads formats up to 1, the newer release writes format 2.

Each command runs in a process of one release. The older release must either run a command as if it were alone, or
refuse it, name an object and its format, and change nothing. The newer release must read everything that both have
written.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from slackwater.store.versions import codec

from tests.models.asking import Answer, Asking
from tests.models.profiles import PROFILE
from tests.models.small_store import write_small_store
from tests.models.test_hostile_stores import READING

Words = tuple[str, ...]
CHANGES: tuple[Words, ...] = (
    ("compact", "types", "--full"),
    ("edit", "types/rows", "--sql", "DELETE FROM rows WHERE x = 1.5"),
    ("forget", "types", "--key", 'rows=["", 0.0, "1970-01-01T00:00:00Z"]'),
    ("gc", "flights", "--all", "1h"),
    ("gc", "types", "--all", "0s"),
    ("protect", "flights"),
    ("protect", "flights", "--off"),
    ("rescale", "flights/aircraft", "--partitions", "5"),
    ("rescale", "types/rows", "--partitions", "3"),
    ("snapshot", "rm", "flights", "before-deploy"),
    ("snapshot", "rm", "flights", "under-way"),
    ("snapshot", "take", "types", "kept", "--instant"),
)
ANSWERS = [words for words in READING if words[0] in ("query", "get")] + [
    ("verify", app, "--deep") for app in ("flights", "types", "staging")
]
REFUSAL = re.compile(
    r"object '[^']+' has format 2; this slackwater reads formats up to 1\n"
    r"hint: a newer slackwater wrote it: upgrade this one"
)
SEARCH = settings(
    max_examples={"default": 8, "mutants": 20, "ci": 200}.get(PROFILE, 4000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Asking]]:
    cache = tmp_path_factory.mktemp("cache")
    processes = {number: Asking(cache, number) for number in (codec.FORMAT, codec.FORMAT + 1)}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_store(tmp_path_factory.mktemp("releases") / "store")


@pytest.mark.ci
@SEARCH
@given(steps=st.lists(st.tuples(st.sampled_from((1, 2)), st.sampled_from(CHANGES)), min_size=1, max_size=6))
def test_an_older_release_works_as_if_alone_or_refuses_and_changes_nothing(
    releases: dict[int, Asking], root: Path, steps: list[tuple[int, Words]]
) -> None:
    shared, alone = (Path(shutil.copytree(root, root.parent / name)) for name in ("shared", "alone"))
    try:
        for release, words in steps:
            before = _objects(shared)
            answer = releases[release](shared, words)
            if release == 1 and REFUSAL.search(answer.stderr):
                event("refused")
                assert answer.exit == 1
                assert before.items() <= _objects(shared).items(), (words, answer)
                continue
            _check_is_understood(answer, words)
            assert answer.exit == releases[1](alone, words).exit, (words, answer)
        for words in ANSWERS:
            answer, expected = releases[2](shared, words), releases[1](alone, words)
            _check_is_understood(answer, words)
            assert answer.exit == expected.exit, (steps, words, answer)
            # Sizes in reports of `verify` depend on the formats.
            assert words[0] == "verify" or answer.stdout == expected.stdout, (steps, words, answer)
    finally:
        shutil.rmtree(shared)
        shutil.rmtree(alone)


def _check_is_understood(answer: Answer, words: Words) -> None:
    assert "escaped" not in answer.stderr, (words, answer)
    assert "has format" not in answer.stderr, (words, answer)
    assert answer.exit in (0, 1), (words, answer)


def _objects(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
