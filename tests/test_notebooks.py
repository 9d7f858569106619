"""Use in notebooks: completion of names, and errors whose tracebacks end in the user's code."""

import pydoc
import re
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import slackwater as sw
from slackwater.client import Client
from slackwater.errors import Fenced, NotFound, Refused, SlackwaterError, Usage
from slackwater.store.objects.local import LocalStore

from .support.histories import FlightsApp, Kafka, flights
from .support.static import ROOT

DOCUMENTED = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("store")
    FlightsApp(LocalStore(folder / "store"), Kafka()).run(flights(20))
    return sw.open(str(folder / "store"))


def test_the_package_lists_its_api_and_nothing_else() -> None:
    assert dir(sw) == sorted(sw.__all__)
    shown = pydoc.plain(pydoc.render_doc(sw))
    assert all(f"{name}(" in shown for name in sw.__all__ if name not in ("errors", "__version__"))
    assert not re.search(r"^    (annotations|TYPE_CHECKING|Any)\b", shown, re.MULTILINE)
    contents = re.search(r"^PACKAGE CONTENTS\n((?:    .+\n)+)", shown, re.MULTILINE)
    assert contents is not None
    assert contents[1].split() == ["errors", "testing"]


@pytest.mark.parametrize(
    "of", [lambda client: client, lambda client: client.app("flights"), lambda client: client.app("flights").at()]
)
def test_completion_lists_only_documented_names(client: Client, of: Callable[[Client], object]) -> None:
    names = [name for name in dir(of(client)) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"[.`]{name}\b", DOCUMENTED)] == []
    assert names


def test_methods_of_an_app_answer_for_its_newest_moment(client: Client) -> None:
    app = client.app("flights")
    by_carrier = "SELECT carrier, flights FROM carriers ORDER BY carrier"
    assert app.query(by_carrier).fetchall() == sorted(Counter(each.carrier for each in flights(20)).items())
    assert app.get("carriers", "C2") == app.at().get("carriers", "C2")
    assert list(app.tables) == ["aircraft", "carriers"]
    assert app.status().data[0].app == "flights"


@pytest.mark.parametrize(
    "error",
    [
        Refused("no", hint="say yes"),
        NotFound("app", "shp", ["shop"], hint="say yes"),
        Fenced("no", version=3, hint="say yes"),
    ],
)
def test_an_error_shows_its_hint_even_if_it_is_set_later(error: SlackwaterError) -> None:
    error.add_note("while testing")
    assert traceback.format_exception_only(error)[-2:] == ["hint: say yes\n", "while testing\n"]
    error.hint = "say no"
    assert traceback.format_exception_only(error)[-2:] == ["while testing\n", "hint: say no\n"]
    error.hint = ""
    assert traceback.format_exception_only(error)[1:] == ["while testing\n"]


def test_an_error_without_a_hint_has_no_note() -> None:
    assert traceback.format_exception_only(Usage("no"))[-1].endswith("Usage: no\n")


CELL = """
import slackwater as sw
client = sw.open({store!r})
def look():
    return client.app("flght")
look()
"""


def test_in_a_notebook_a_traceback_ends_in_the_users_code(client: Client, tmp_path: Path) -> None:
    cell = CELL.format(store=client.root)
    program = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor')\n"
        "shell.run_cell(sys.stdin.read())"
    )
    words = [sys.executable, "-W", "ignore", "-c", program]
    env = {"IPYTHONDIR": str(tmp_path), "PATH": "", "SLACKWATER_CACHE": str(tmp_path)}
    done = subprocess.run(words, input=cell, capture_output=True, text=True, check=True, env=env)
    shown = done.stdout + done.stderr
    assert "in look()" in shown
    assert "no app named 'flght'; the nearest: flights" in shown
    assert "hint: looked under" in shown
    # No frame is ours, or IPython's.
    assert str(ROOT) not in shown


def test_without_ipython_a_traceback_ends_in_the_users_code_too(tmp_path: Path) -> None:
    program = tmp_path / "look.py"
    program.write_text(
        "import slackwater as sw\n"
        "try:\n"
        "    sw.open(store='/nowhere').app('shop')\n"
        "except sw.errors.NotFound as error:\n"
        "    print(*error._render_traceback_(), sep='\\n')\n"
    )
    words = [sys.executable, str(program)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in shown if line.startswith("  File")] == [f'  File "{program}", line 3, in <module>']
    assert shown[-1] == "hint: looked under /nowhere"
