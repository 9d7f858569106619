"""Selected acts of the demo, with the acts that they need."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.support.static import ROOT


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the demo, a script."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("chosen", "told"),
    [("", list(range(1, 13))), ("10", [1, 10]), ("5", [1, 2, 3, 4, 5]), ("8, 6", [1, 2, 3, 4, 6, 8])],
)
def test_choosing_an_act_adds_the_acts_that_it_needs(demo: ModuleType, chosen: str, told: list[int]) -> None:
    assert demo.choose(chosen) == told


@pytest.mark.parametrize("wrong", ["13", "x", "3 5"])
def test_an_unknown_act_is_refused_with_a_list_of_the_acts(demo: ModuleType, wrong: str) -> None:
    with pytest.raises(SystemExit, match=r"is no act; the acts are 1 \(servers\), 2 \(app\)"):
        demo.choose(wrong)


_WAITING = """
import signal, sys
import demo
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which the tests may run, ignores it
def act(story):
    running = story.app.enter_context(demo.background("sleep", "600", log=demo.Path("log")))
    print(f"runs: {running.pid}", flush=True)
    signal.pause()
demo.ACTS = {1: (act, ())}
demo.main("1")
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_background_programs_stop_with_the_demo(ending: signal.Signals, tmp_path: Path) -> None:
    how = {"PYTHONPATH": str(ROOT / "examples")} | {name: os.environ[name] for name in ("HOME", "PATH")}
    command = [sys.executable, "-c", _WAITING]
    with subprocess.Popen(command, cwd=tmp_path, env=how, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pid = next(int(line.split()[1]) for line in demo.stdout if line.startswith("runs: "))
        assert psutil.pid_exists(pid)
        demo.send_signal(ending)
        demo.communicate(timeout=180)
    assert (demo.returncode, psutil.pid_exists(pid)) == (128 + ending, False)
