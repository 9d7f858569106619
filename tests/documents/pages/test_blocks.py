"""Code blocks of the documentation: each is checked as far as possible, or listed with the reason why not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser as promql
import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession
from slackwater import settings
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.run.program import load_app

from tests.documents.pages.blocks import BLOCKS, Block, blocks, program
from tests.documents.test_deploy import VALUES
from tests.support.static import ROOT

PROGRAMS = [block for block in blocks("python") if "sw.App(" in block.code]
SNIPPETS = [block for block in blocks("python") if block not in PROGRAMS]
ELSEWHERE = {
    "console": "typed by test_typed.py and test_first_app.py",
    "mermaid": "drawn by the browser",
    "diff": "applied by test_typed.py",
}
NOT_TRIED = {
    "": "output, or a drawing in text",
    "dockerfile": "needs a container engine",
    "sql": "needs an Iceberg catalogue",
    "text": "a listing of files",
}
"""Languages of blocks that are not tried."""
BEFORE = """\
# mypy: allow-untyped-defs, allow-untyped-calls, allow-redefinition, disable-error-code="no-redef,type-arg,union-attr"
import json
from typing import Any

import slackwater as sw
from pyspark.sql import DataFrame, SparkSession, functions as F
from slackwater.client import Client, Moment, StoredApp

client: Client
customers: DataFrame
messages: DataFrame
now: Moment
spark: SparkSession
"""
"""Text to put before a page's snippets, which are checked as one module."""
OWN = {
    "README.md": "app: StoredApp",
    "docs/first-app.md": "app: sw.App\nORDER: str",
    "docs/python.md": "app: StoredApp\nstore: str",
    "docs/repair.md": "app: StoredApp",
    "docs/testing-your-app.md": "import shop, shop_v2\nfrom slackwater.testing import Ran\ntables: Ran",
    "docs/tuning.md": "app: sw.App\nby_customer: Any",
    "docs/writing-apps.md": "app: sw.App\nrows: DataFrame\nVisits: Any",
}
"""More text to put before the snippets of single pages."""

UNTYPED = (
    'Unexpected keyword argument "min_offsets" for "at"',
    'Argument 1 to "Record" has incompatible type "dict[',
    'Argument 1 to "loads" has incompatible type "bytes | None"',
)
"""Errors that mypy reports in correct blocks, for example for `sw.open`, whose result is a store or a server."""


def block_id(block: object) -> str:
    return block.name if isinstance(block, Block) else str(block)


def every(language: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", blocks(language), ids=block_id)


def test_every_block_is_checked_or_listed_with_a_reason() -> None:
    tried = {"python", "toml", "json", "yaml", "promql"}
    assert {block.language for block in BLOCKS} == {*tried, *ELSEWHERE, *NOT_TRIED}


def test_every_python_block_passes_mypy(tmp_path: Path) -> None:
    """Check each program, and all snippets of a page as one module, with mypy."""
    for block in PROGRAMS:
        (tmp_path / f"program_{module_name(block)}_{block.number}.py").write_text(block.code)
    for page in dict.fromkeys(block.page for block in SNIPPETS):
        snippets = [block for block in SNIPPETS if block.page == page]
        code = "\n".join((BEFORE, OWN.get(page, ""), *(block.code for block in snippets)))
        (tmp_path / f"page_{module_name(snippets[0])}.py").write_text(code)
    for name in ("shop", "shop_v2"):
        (tmp_path / f"{name}.py").write_text(program("README.md"))
    links = ROOT / ".types"  # as `make check` makes them, whose cache serves here too
    links.mkdir(exist_ok=True)
    if not (links / "slackwater").is_symlink():
        (links / "slackwater").symlink_to("..")
    environment = {**os.environ, "MYPYPATH": f".types{os.pathsep}{tmp_path}"}
    words = [sys.executable, "-m", "mypy", *sorted(tmp_path.glob("*.py"))]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode < 2, done.stdout + done.stderr
    assert [line for line in errors if not any(known in line for known in UNTYPED)] == []
    assert [known for known in UNTYPED if not any(known in line for line in errors)] == []


def module_name(block: Block) -> str:
    return Path(block.page).stem.replace("-", "_").lower()


@pytest.mark.spark
@pytest.mark.parametrize("block", PROGRAMS, ids=block_id)
def test_every_program_declares_a_consistent_app(block: Block, spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / f"{module_name(block)}_{block.number}.py"
    file.write_text(block.code, encoding="utf-8")
    app = load_app(str(file))
    assert derive_schemas(app, spark).keys() == app.stages.keys()


@every("toml")
def test_every_settings_block_is_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / settings.FILE_NAME).write_text(block.code, encoding="utf-8")
    settings.load(environ={}, folder=tmp_path)


@every("json")
def test_every_json_block_parses(block: Block) -> None:
    json.loads(block.code)


@every("yaml")
def test_every_block_of_chart_values_is_valid(block: Block, tmp_path: Path) -> None:
    values = yaml.safe_load(block.code)
    assert values.keys() <= VALUES.keys()
    (tmp_path / settings.FILE_NAME).write_text(values.get("settings", ""), encoding="utf-8")
    settings.load(environ={}, folder=tmp_path)


@every("promql")
def test_every_promql_block_parses(block: Block) -> None:
    for expression in re.split(r"\n(?=\S)", block.code.strip()):
        promql.parse(expression)


def module_with(words: str) -> ModuleType:
    """Run the program that contains these words on the page about writing apps."""
    (block,) = (block for block in blocks("python", "docs/writing-apps.md") if words in block.code)
    module = ModuleType(block.name)
    exec(block.code, vars(module))  # noqa: S102  it is our own text that is tried
    return module


def test_the_update_function_emits_each_customer_once() -> None:
    program = module_with('"rewards"')
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


def test_orders_and_payments_match_in_either_order() -> None:
    program = module_with('"till"')
    nothing = pa.table({"cents": pa.array([], pa.int64()), "_key": pa.array([], pa.int32())})
    orders = pa.table({"cents": [500, 250], "_key": pa.array([0, 1], pa.int32())})
    payments = pa.table({"cents": [300, 200, 250], "_key": pa.array([0, 0, 1], pa.int32())})
    new = pa.table({"number": [7, 8], "owed": pa.nulls(2, pa.int64()), "paid": pa.nulls(2, pa.int64())})
    settled = {"owed": [500, 250], "paid": [500, 250]}
    assert program.settle(orders, payments, new).to_pydict() == settled
    assert program.settle(orders, nothing, program.settle(nothing, payments, new)).to_pydict() == settled
    assert program.settle(nothing, payments, program.settle(orders, nothing, new)).to_pydict() == settled


def test_a_cart_is_abandoned_after_an_hour_without_records() -> None:
    program = module_with('"abandoned"')
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
