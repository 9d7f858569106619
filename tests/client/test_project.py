"""`slackwater new`: its files and refusals, and that the new project runs."""

import keyword
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater import settings
from slackwater.client.project.write import module_of, write_project
from slackwater.errors import Refused, Usage
from slackwater.pipeline.kafka.open import end_offsets, open_kafka

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.documents.pages.blocks import blocks

FILES = ["shop.py", "test_shop.py", "feed.py", "slackwater.toml", "requirements.txt", ".github/workflows/ci.yml"]
FILES += [".gitignore"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_lists_the_files_and_writes_none(here: Path) -> None:
    said = done("new", "shop", "--dry-run")
    assert [line.strip() for line in said.splitlines()[1:-1]] == FILES
    assert said.endswith("nothing was changed (--dry-run)\n")
    assert list(here.iterdir()) == []
    project = from_json("new", "shop")
    assert (project["written"], project["existing"]) == (FILES, [])
    assert sorted(texts(here / "shop")) == sorted(FILES)


def test_no_file_is_replaced(here: Path) -> None:
    done("new", "shop", "--folder", ".")
    before = texts(here)
    assert done("new", "shop", "--folder", ".").startswith("done already: ")
    (here / "feed.py").write_text("# mine")
    (here / "shop.py").unlink()
    result = slackwater("new", "shop", "--folder", ".")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has other text in feed.py; nothing was written" in result.stderr
    assert not (here / "shop.py").exists()
    (here / "feed.py").write_text(before["feed.py"])
    assert from_json("new", "shop", "--folder", ".")["written"] == ["shop.py"]
    assert texts(here) == before


@pytest.mark.usefixtures("here")
def test_an_unusable_path_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="'Shop' is not usable"):
        write_project("Shop")
    with pytest.raises(Refused, match="no folder"):
        write_project("shop", Path("a/b"))
    Path("file").touch()
    with pytest.raises(Refused, match="file is a file"):
        write_project("shop", Path("file"))
    Path("shop").mkdir()
    Path("shop/shop.py").symlink_to("nowhere")
    with pytest.raises(Refused, match=r"other text in shop\.py"):
        write_project("shop")


@pytest.mark.ci
@given(
    st.one_of(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True), st.sampled_from(["json", "feed", "class"]))
)
def test_the_program_gets_an_importable_name_that_shadows_no_module(app: str) -> None:
    module = module_of(app)
    assert module.isidentifier()
    assert not keyword.iskeyword(module)
    assert module not in sys.stdlib_module_names
    assert module not in ("feed", "slackwater", "pyspark", "pytest")


@pytest.mark.parametrize("app", ["shop", "my-orders", "json"])
def test_ruff_finds_nothing_wrong_with_a_project(app: str, tmp_path: Path) -> None:
    write_project(app, tmp_path / app)
    for words in (("check", "--select", "E,F,I,B,UP,SIM,PTH,PT,RUF,W"), ("format", "--check")):
        ruff = [sys.executable, "-m", "ruff", *words, "--isolated", "--no-cache", "."]
        found = subprocess.run(ruff, cwd=tmp_path / app, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout


def test_the_settings_of_a_project_are_valid(tmp_path: Path) -> None:
    write_project("my-orders", tmp_path / "orders")
    loaded = settings.load(environ={}, folder=tmp_path / "orders")
    assert (loaded.store, loaded.brokers) == (str(tmp_path / "orders" / "state"), "localhost:9092")
    assert loaded.programs == {"my-orders": str(tmp_path / "orders" / "my_orders.py")}
    assert not loaded.retention_of("my-orders").keeps_everything


def test_the_first_app_page_shows_the_program_that_is_written(tmp_path: Path) -> None:
    write_project("shop", tmp_path / "shop")
    program = (tmp_path / "shop" / "shop.py").read_text()
    (shown,) = (block.code for block in blocks("python", "docs/first-app.md") if "@app.stage" in block.code)
    assert program.endswith(shown)


def feeder(folder: Path) -> Any:
    program = ModuleType("feed")
    exec((folder / "feed.py").read_text(), vars(program))  # noqa: S102  it is our own text that is tried
    return program


@pytest.mark.ci
@pytest.mark.spark
def test_the_test_of_a_project_passes_without_kafka(tmp_path: Path) -> None:
    write_project("shop", tmp_path / "shop")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    ran = subprocess.run(words, cwd=tmp_path / "shop", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_the_program_of_a_project_counts_what_its_feeder_sends(
    broker: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, topic = here / "shop", f"orders-{uuid4().hex}"
    write_project("shop", folder)
    monkeypatch.chdir(folder)
    program = folder / "shop.py"
    program.write_text(program.read_text().replace('topic("orders")', f'topic("{topic}")'))
    monkeypatch.setenv("SLACKWATER_KAFKA", broker)
    words = [sys.executable, "feed.py", topic, "0", "300"]
    fed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert fed.stdout == f"300 orders are in {topic}\n", fed.stderr
    assert sum(end_offsets(open_kafka(broker), topic) or ()) == 300
    done("run", "shop.py", "--until-caught-up", "--max-records", "100")
    rows = rows_of("shop", "FROM countries")
    assert len(from_json("log", "shop")) > 3
    expected: dict[str, list[int]] = defaultdict(list)
    for order in map(feeder(folder).order, range(300)):
        expected[order["country"]].append(order["cents"])
    found = {row["country"]: (row["orders"], row["cents"], row["largest"]) for row in rows}
    assert found == {country: (len(cents), sum(cents), max(cents)) for country, cents in expected.items()}
