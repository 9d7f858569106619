"""The documents hold: links lead somewhere, code runs, commands and targets exist, pictures need nothing else."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from slackwater.cli.main import app as command_line
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.run.program import load_app
from typer.main import get_command

from tests.support.static import PARTS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language."""
    return [code for found, code in _FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a link may have behind `#`, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of every link to something of ours."""
    for target in _LINK.findall(prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@every_page
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for path, anchor in links(page):
        assert path.exists(), path
        assert not anchor or anchor in anchors(path), f"{path.name}#{anchor}"


@every_page
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        named = set(re.findall(rf"`((?:{'|'.join(PARTS)}|tests|bench|examples)/[\w/]+\.py)`", prose(page)))
        to_come = {"pipeline/kafka/sink.py"}
        assert not [path for path in named - to_come if not (ROOT / path).exists()]
    if page.name in ("CONTRIBUTING.md", "design.md", "testing.md"):
        # Of modules: other pages name programs of their readers.
        alone = set(re.findall(r"`([a-z_0-9]+\.py)`", prose(page)))
        there = [*ROOT.glob("*.py"), *(path for part in (*PARTS, "tests") for path in (ROOT / part).rglob("*.py"))]
        assert alone <= {path.name for path in there}


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    new = {README}
    while new:
        seen |= new
        new = {path for page in new for path, _ in links(page) if path.suffix == ".md"} - seen
    assert set(PAGES) <= seen


def test_every_picture_is_shown_and_loads_nothing() -> None:
    shown = {path for page in PAGES for path, _ in links(page)}
    pictures = set((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert pictures <= shown
    for picture in (each for each in pictures if each.suffix != ".png"):
        assert not re.findall(r"url\(.?http|href=|@import|<script", picture.read_text(encoding="utf-8"))


@every_page
def test_no_page_names_a_folder_of_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"/(?:home|root|tmp|Users)/\S*", page.read_text(encoding="utf-8"))


PYTHON = [(page, number) for page in PAGES for number, _ in enumerate(blocks(page, "python"))]
PROGRAMS = [(page, number) for page, number in PYTHON if "sw.App(" in blocks(page, "python")[number]]


def block_id(value: object) -> str:
    return page_id(value) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("page", "number"), PYTHON, ids=block_id)
def test_every_python_block_compiles(page: Path, number: int) -> None:
    compile(blocks(page, "python")[number], page.name, "exec")


@pytest.mark.spark
@pytest.mark.parametrize(("page", "number"), PROGRAMS, ids=block_id)
def test_every_program_declares_an_app_that_fits_together(
    page: Path, number: int, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / f"{page.stem.replace('-', '_').lower()}_{number}.py"
    file.write_text(blocks(page, "python")[number], encoding="utf-8")
    app = load_app(str(file))
    assert derive_schemas(app, spark).keys() == app.stages.keys()


def test_the_update_function_tells_of_each_customer_once() -> None:
    (code,) = (code for code in blocks(ROOT / "docs" / "writing-apps.md", "python") if '"rewards"' in code)
    program = ModuleType("rewards")
    exec(code, vars(program))  # noqa: S102  it is our own text that is tried
    state: dict[str, int | None] = {}
    told: list[dict[str, Any]] = []
    for batch in (
        [("ann", 60_000), ("ann", 39_999), ("bob", None)],
        [("ann", 1), ("bob", 100_000), ("eve", 99_999)],
        [("ann", 500_000), ("bob", 1), ("eve", None)],
    ):
        customers = sorted({customer for customer, _ in batch})
        rows = pa.table(
            {
                "customer": [customer for customer, _ in batch],
                "cents": pa.array([cents for _, cents in batch], pa.int64()),
                "_key": pa.array([customers.index(customer) for customer, _ in batch], pa.int32()),
            }
        )
        before = pa.array([state.get(customer) for customer in customers], pa.int64())
        after, emitted = program.add(rows, pa.table({"customer": customers, "cents": before}))
        state.update(zip(customers, after["cents"].to_pylist(), strict=True))
        told += emitted.to_pylist()
    assert state == {"ann": 600_000, "bob": 100_001, "eve": 99_999}
    assert told == [{"customer": "ann", "cents": 100_000}, {"customer": "bob", "cents": 100_000}]


def test_orders_and_payments_settle_whichever_comes_first() -> None:
    (code,) = (code for code in blocks(ROOT / "docs" / "writing-apps.md", "python") if '"till"' in code)
    program = ModuleType("till")
    exec(code, vars(program))  # noqa: S102  it is our own text that is tried
    nothing = pa.table({"cents": pa.array([], pa.int64()), "_key": pa.array([], pa.int32())})
    orders = pa.table({"cents": [500, 250], "_key": pa.array([0, 1], pa.int32())})
    payments = pa.table({"cents": [300, 200, 250], "_key": pa.array([0, 0, 1], pa.int32())})
    new = pa.table({"number": [7, 8], "owed": pa.nulls(2, pa.int64()), "paid": pa.nulls(2, pa.int64())})
    settled = {"owed": [500, 250], "paid": [500, 250]}
    assert program.settle(orders, payments, new).to_pydict() == settled
    assert program.settle(orders, nothing, program.settle(nothing, payments, new)).to_pydict() == settled
    assert program.settle(nothing, payments, program.settle(orders, nothing, new)).to_pydict() == settled


def test_a_cart_is_abandoned_when_nothing_came_for_an_hour() -> None:
    (code,) = (code for code in blocks(ROOT / "docs" / "writing-apps.md", "python") if '"abandoned"' in code)
    program = ModuleType("carts")
    exec(code, vars(program))  # noqa: S102  it is our own text that is tried
    at = pa.array([0, 60_000_000, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({"at": at, "_key": pa.array([0, 0, 1], pa.int32())})
    new = pa.table({"visitor": ["ann", "bob"], "items": pa.array([None, 4], pa.int64()), "until": pa.nulls(2, at.type)})
    state, emitted = program.cart(rows, new)
    hour_us = 3_600_000_000
    assert state["items"].to_pylist() == [2, 5]
    assert state["until"].cast(pa.int64()).to_pylist() == [60_000_000 + hour_us, hour_us]
    assert emitted.num_rows == 0
    state, emitted = program.cart(rows.slice(0, 0), state.append_column("visitor", new["visitor"]))
    assert state["_deleted"].to_pylist() == [True, True]
    assert emitted.to_pylist() == [{"visitor": "ann", "items": 2}, {"visitor": "bob", "items": 5}]


def spoken(page: Path) -> Iterator[str]:
    """Every command of ours that a page types: after `$` in a console, or as code within a sentence."""
    typed = [line[2:] for code in blocks(page, "console") for line in code.splitlines() if line.startswith("$ ")]
    for text in (*typed, *re.findall(r"`([^`\n]+)`", prose(page))):
        if found := re.search(r"\bslackwater (?=[a-z]|-)(.*)", text):
            # Of `eval "$(slackwater dev up)"` the command ends at the parenthesis.
            yield re.split(r"\)\"|\s#\s| \| ", found[1])[0]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words call, or the group they stop at, and the words left."""
    command: Any = get_command(command_line)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        found = command.get_command(None, words[0])
        if found is None and command.invoke_without_command:
            break
        assert found is not None, f"there is no verb {words[0]!r}"
        command, words = found, words[1:]
    return command, words


@every_page
def test_every_command_that_a_page_types_exists_and_has_its_options(page: Path) -> None:
    for text in spoken(page):
        command, words = resolve(shlex.split(text.replace("…", ""), comments=True))
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known | {"--help", "--"}, f"slackwater {text}"


@every_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", text)) <= targets
