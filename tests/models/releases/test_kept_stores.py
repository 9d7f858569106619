"""Stores that earlier releases wrote, kept as files: later releases must give the same answers.

`python -m tests.models.releases.test_kept_stores` writes the store of the present format. Run it for a new format only:
the files of old formats stand for what users have in their buckets.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from slackwater.store.versions import codec

from tests.models.asking import Asking
from tests.models.small_store import write_small_store
from tests.models.test_hostile_stores import READING

_FOLDER = Path(__file__).parent / "kept"
_ANSWERS = [(*words, "--json") for words in READING if words[0] in ("query", "get", "diff", "history")]
_CHECKS = [("verify", app, "--deep") for app in ("flights", "types", "staging")]


@pytest.mark.parametrize("stored_format", range(1, codec.FORMAT + 1))
def test_a_store_in_each_format_gives_the_answers_of_its_release(stored_format: int, tmp_path: Path) -> None:
    with tarfile.open(_FOLDER / f"format-{stored_format}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    asked = Asking(tmp_path / "cache")
    try:
        for words, code, expected in json.loads((tmp_path / "answers.json").read_bytes()):
            answer = asked(tmp_path / "store", words)
            assert (answer.exit, answer.stdout) == (code, expected), (words, answer)
        for words in _CHECKS:
            assert asked(tmp_path / "store", words).exit == 0, words
    finally:
        asked.close()


def _write_kept_store(folder: Path) -> Path:
    """Write the small store and this release's answers as a file for its format. Never replaces a file."""
    root = write_small_store(folder / "store")
    asked = Asking(folder / "cache")
    try:
        answers = [(words, asked(root, words)) for words in _ANSWERS]
    finally:
        asked.close()
    kept = [(words, answer.exit, answer.stdout) for words, answer in answers]
    # `diff` ends with 1 if rows differ.
    assert all(answer.exit == (words[0] == "diff") for words, answer in answers), answers
    (folder / "answers.json").write_text(json.dumps(kept))
    path = _FOLDER / f"format-{codec.FORMAT}.tar.xz"
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:xz") as archive:
        for name in ("store", "answers.json"):
            archive.add(folder / name, name)
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"{_write_kept_store(Path(folder))}\n")
