"""Selected acts of the demo, with the acts that they need."""

import importlib.util
from types import ModuleType

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
    [("", list(range(1, 12))), ("10", [1, 10]), ("5", [1, 2, 3, 4, 5]), ("8, 6", [1, 2, 3, 4, 6, 8])],
)
def test_a_chosen_act_brings_those_that_it_needs(demo: ModuleType, chosen: str, told: list[int]) -> None:
    assert demo.choose(chosen) == told


@pytest.mark.parametrize("wrong", ["12", "x", "3 5"])
def test_a_wrong_act_is_refused_with_a_list_of_the_acts(demo: ModuleType, wrong: str) -> None:
    with pytest.raises(SystemExit, match=r"is no act; the acts are 1 \(servers\), 2 \(app\)"):
        demo.choose(wrong)
