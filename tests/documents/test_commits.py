"""Subjects of the newest commits follow CONTRIBUTING."""

import subprocess
from pathlib import Path

import pytest

NUM_COMMITS = 20
MAX_CHARACTERS = 72
VERBS = set((Path(__file__).parent / "verbs.txt").read_text().split())
"""Verbs that may begin a subject. A commit with another verb adds it here."""


def test_subjects_are_imperative_and_short() -> None:
    root = Path(__file__).parents[2]
    # Without the newest commit, which may be a host's own merge commit.
    log = ["git", "log", f"-{NUM_COMMITS}", "--no-merges", "--format=%s", "HEAD~1"]
    result = subprocess.run(log, cwd=root, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip("no history: an export, or a shallow clone")
    subjects = result.stdout.splitlines()
    assert subjects
    assert [subject for subject in subjects if len(subject) > MAX_CHARACTERS] == []
    assert [subject for subject in subjects if subject.split()[0].lower() not in VERBS] == []
