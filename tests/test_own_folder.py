"""A process removes its own folder at its end; the next process removes the folders of killed processes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from slackwater.common.whole_file import locked_folder, remove_dead_folders, temporary_folder
from slackwater.pipeline.batch.committer import spool_root

KILLED = """
import os, signal, sys
from pathlib import Path
from slackwater.common.whole_file import locked_folder
with locked_folder(Path(sys.argv[1]), "dead") as folder:
    (folder / "x").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_removes_its_folder_and_the_next_one_those_of_dead_processes(tmp_path: Path) -> None:
    parent = spool_root(tmp_path / "cache")
    assert parent == tmp_path / "cache-spool"
    remove_dead_folders(parent)
    subprocess.run([sys.executable, "-c", KILLED, str(parent)], check=False)
    assert (parent / "dead" / "x").exists()
    (parent / "without a lock").mkdir()
    with locked_folder(parent, "alive") as folder:
        remove_dead_folders(parent)
        assert folder.is_dir()
        assert sorted(path.name for path in parent.iterdir()) == ["alive", "alive.lock"]
    assert list(parent.iterdir()) == []


def test_temporary_folders_belong_to_the_user_and_leftovers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parent = tmp_path / f"slackwater-{os.getuid()}"
    with temporary_folder() as first:
        (parent / "left").mkdir()
        with temporary_folder() as second:
            assert {each for each in parent.iterdir() if each.is_dir()} == {first, second}
    assert (list(parent.iterdir()), parent.stat().st_mode & 0o777) == ([], 0o700)
    # A name that others may write under is not used.
    parent.chmod(0o777)
    with temporary_folder() as other:
        assert other.parent == tmp_path
    parent.rmdir()
    parent.symlink_to(tmp_path)
    with temporary_folder() as other:
        assert other.parent == tmp_path
    assert list(tmp_path.iterdir()) == [parent]
