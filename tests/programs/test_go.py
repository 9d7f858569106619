"""Go programs are built before tests, and never during a test."""

import subprocess
from pathlib import Path

import pytest

from tests.programs import go
from tests.support.static import ROOT

GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
[ -z "$GO_FAILS" ] || { echo "$GO_FAILS" >&2; exit 1; }
printf '#!/bin/sh\\necho it runs\\n' > "$GOBIN/versitygw"
chmod +x "$GOBIN/versitygw"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the arguments with which a fake Go on `PATH` was called. The cache is empty."""
    program, calls = tmp_path / "bin" / "go", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(GO)
    program.chmod(0o755)
    calls.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_CALLS", str(calls))
    return calls


def test_a_test_is_skipped_if_its_program_was_not_built(calls: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="`make programs`"):
        go.built("versitygw")
    assert calls.read_text() == ""


def test_a_program_is_built_once_and_files_of_a_killed_build_are_deleted(calls: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "slackwater" / "versitygw-v1.8.0.killed"
    left.mkdir(parents=True)
    go.build("versitygw")
    go.build("versitygw")
    assert subprocess.run([go.built("versitygw")], capture_output=True, check=True).stdout == b"it runs\n"
    assert len(calls.read_text().splitlines()) == 1
    assert not left.exists()


def test_a_failed_build_reports_the_reason_and_leaves_nothing(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_FAILS", "go: no such module")
    with pytest.raises(go.NotBuilt, match="no such module"):
        go.build("versitygw")
    assert not go.is_built("versitygw")


@pytest.mark.parametrize("target", ["test-without-servers", "test-with-servers", "soak"])
def test_each_make_target_that_runs_tests_builds_the_programs_first(target: str) -> None:
    # Else make prints what it would do for the targets of others.
    words = ["make", "-n", "-o", ".venv/.ready", "READY=pyproject.toml", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    prepared = next(number for number, line in enumerate(lines) if "-m tests.programs versitygw" in line)
    assert prepared < next(number for number, line in enumerate(lines) if "-m pytest" in line)
