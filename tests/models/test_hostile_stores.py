"""Damaged objects: each verb gives a right answer or a one-sentence error, within seconds and half a gigabyte."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.models.asking import TOO_LARGE_MIB, TOO_LONG_S, Answer, Asking
from tests.models.profiles import PROFILE
from tests.models.small_store import write_small_store
from tests.support.hostile import changed, sealed

_ROWS = "SELECT * FROM {} ORDER BY ALL"
READING: tuple[tuple[str, ...], ...] = (
    ("query", "flights", _ROWS.format("aircraft")),
    ("query", "flights@at-noon", _ROWS.format("carriers")),
    ("query", "flights@-1d", _ROWS.format("carriers")),
    ("query", "flights@before-deploy", "SELECT * FROM inflight('by-aircraft') ORDER BY ALL"),
    ("query", "staging", _ROWS.format("carriers")),
    ("query", "types", _ROWS.format("rows")),
    ("get", "flights/aircraft", "N001"),
    ("diff", "flights@before-deploy", "staging"),
    ("history", "flights/carriers", "C1"),
    ("log", "flights", "--limit", "1000"),
    ("log", "staging", "--operations"),
    ("status",),
    ("status", "flights"),
    ("status", "types"),
    ("status", "--cost"),
    ("verify", "flights", "--deep"),
    ("verify", "flights@before-deploy", "--deep"),
    ("verify", "staging"),
    ("verify", "types", "--deep"),
    ("snapshot", "list", "flights"),
    ("snapshot", "show", "flights", "before-deploy"),
    ("snapshot", "show", "flights", "clone-staging"),
    ("clone", "list"),
    ("bisect", "flights", "--where", "SELECT carrier, delay FROM carriers WHERE delay > 1000"),
    ("gc", "flights", "--dry-run", "--all", "1h"),
    ("compact", "flights", "--dry-run"),
    ("compact", "types", "--full", "--dry-run"),
    ("rescale", "flights/aircraft", "--partitions", "5", "--dry-run"),
)
CHANGING = (("compact", "flights"), ("compact", "types", "--full"), ("gc", "flights", "--all", "1h"))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    asked = Asking(tmp_path_factory.mktemp("cache"))
    yield asked
    asked.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_store(tmp_path_factory.mktemp("hostile") / "store")


@pytest.fixture(scope="module")
def objects(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.*"))


def check(answer: Answer, words: tuple[str, ...]) -> None:
    said = answer.stdout + answer.stderr
    assert "bug in slackwater" not in said, answer
    assert "Traceback" not in said, answer
    assert "escaped" not in answer.stderr, answer
    assert answer.exit in (0, 1), answer
    assert answer.seconds < TOO_LONG_S, (answer, words)
    assert answer.more_mib < TOO_LARGE_MIB, (answer, words)
    if answer.exit == 1 and not answer.stdout:
        assert any(line.startswith("error: ") for line in answer.stderr.splitlines()), (answer, words)


def ask(asking: Asking, root: Path, key: str, data: bytes, words: tuple[str, ...]) -> Answer:
    """Run a command line while one object is replaced."""
    path = root / key
    before = path.read_bytes()
    if words in CHANGING:
        copy = Path(shutil.copytree(root, root.parent / "copy"))
        try:
            (copy / key).write_bytes(data)
            return asking(copy, words)
        finally:
            shutil.rmtree(copy)
    path.write_bytes(data)
    try:
        return asking(root, words)
    finally:
        path.write_bytes(before)


EXAMPLES = {"default": 15, "mutants": 25, "ci": 400}.get(PROFILE, int(os.environ.get("HOSTILE", "10000")))
SEARCH = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@SEARCH
@given(data=st.data())
def test_any_change_of_a_json_object_gets_an_answer_or_an_error(
    asking: Asking, root: Path, objects: list[str], data: st.DataObject
) -> None:
    documents = [key for key in objects if key.endswith(".json")]
    key = data.draw(st.sampled_from(heads(documents)) | st.sampled_from(documents), "key")
    value = json.loads((root / key).read_bytes())
    hostile = sealed(data.draw(changed(value), "value"))
    words = data.draw(st.sampled_from(about(key)), "words")
    assume(words not in CHANGING or _partitions(hostile) < 1_000)
    check(ask(asking, root, key, hostile, words), words)


@SEARCH
@given(data=st.data())
def test_any_damage_to_the_bytes_of_an_object_gets_an_answer_or_an_error(
    asking: Asking, root: Path, objects: list[str], data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(objects), "key")
    old, other = (root / key).read_bytes(), (root / data.draw(st.sampled_from(objects), "other")).read_bytes()
    at = data.draw(st.integers(0, len(old) - 1), "at")
    new = data.draw(
        st.sampled_from([old[:at], other, b"", old + old[:at], old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :]]), "new"
    )
    words = data.draw(st.sampled_from([words for words in about(key) if words not in CHANGING]), "words")
    answer = ask(asking, root, key, new, words)
    check(answer, words)
    # Objects whose checksum is wrong are reported, unless they were not needed.
    if words[0] in ("query", "get") and answer.exit == 0:
        assert answer.stdout == asking(root, words).stdout


def heads(documents: list[str]) -> list[str]:
    """Return the newest manifest of each stage."""
    newest = {key.rpartition("/")[0]: key for key in documents if "/manifests/" in key}
    return list(newest.values())


def _partitions(document: bytes) -> int:
    """Return the number of state partitions in the document, because a full merge merges each of them."""
    found = re.search(rb'"partitions":([0-9]+)', document)
    return int(found[1]) if found else 0


def about(key: str) -> list[tuple[str, ...]]:
    """Return command lines that read an object."""
    app = key.partition("/")[0]
    return [words for words in READING + CHANGING if len(words) == 1 or app in " ".join(words) or words[1] == "--cost"]
