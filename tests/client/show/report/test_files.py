"""`bisect --report FILE --md FILE`: complete files, or a refusal before the search."""

from pathlib import Path

import pytest
from slackwater.store.objects.open import open_store

from tests.cli.verbs.calling import BAD, BROKEN, from_json, slackwater
from tests.client.show.report.cases import Parsed
from tests.support.histories import FlightsApp, Kafka, copied, flights

pytestmark = pytest.mark.usefixtures("isolated", "app")
SEARCH = ("bisect", "flights", "--where", BAD)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("written") / "store")), Kafka())
    app.run(flights(40))
    app.run([BROKEN])
    return app


@pytest.fixture
def app(written: FlightsApp, tmp_path: Path) -> FlightsApp:
    return copied(written, open_store(str(tmp_path / "store")))


def test_both_files_have_the_verdict_and_no_value(tmp_path: Path) -> None:
    result = slackwater(*SEARCH, "--report", "out.html", "--md", "out.md")
    assert result.exit_code == 0, result.output
    assert "the report is in out.html" in result.stderr
    page, text = ((tmp_path / name).read_text() for name in ("out.html", "out.md"))
    (sentence,) = Parsed.of(page).texts["h1"]
    assert sentence.startswith("flights/carriers@v6 is the first bad commit of flights")
    assert text.startswith("## `flights/carriers@v6` is the first bad commit of `flights`")
    for value in (BROKEN.carrier, "5,000", "5000", "1000"):
        assert value not in text
        assert value not in page
    assert not [*tmp_path.glob(".*.tmp")]


def test_values_are_shown_on_request(tmp_path: Path) -> None:
    assert slackwater(*SEARCH, "--md", "out.md", "--show-values").exit_code == 0
    text = (tmp_path / "out.md").read_text()
    assert f"`{BROKEN.carrier}`" in text
    assert BAD in text
    assert not (tmp_path / "out.html").exists()


def test_the_json_is_the_same_with_and_without_a_report(tmp_path: Path) -> None:
    with_report, without = from_json(*SEARCH, "--report", "out.html"), from_json(*SEARCH)
    for answer in (with_report, without):
        del answer["steps"]  # these say how long each took
    assert with_report == without
    assert (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (["--report", "out.pdf"], 2, "expected a name that ends with .html"),
        (["--md", "out.html"], 2, "expected a name that ends with .md"),
        (["--report", "nowhere/out.html"], 1, "no folder nowhere"),
        (["--show-values"], 2, "add --report FILE or --md FILE"),
    ],
)
def test_an_unwritable_report_is_refused_before_the_search(given: list[str], code: int, why: str) -> None:
    result = slackwater(*SEARCH, *given)
    assert (result.exit_code, result.stdout) == (code, "")
    assert why in result.stderr
    assert "good" not in result.stderr


def test_a_report_that_cannot_replace_its_target_leaves_the_target_unchanged(tmp_path: Path) -> None:
    (tmp_path / "out.html").mkdir()
    result = slackwater(*SEARCH, "--report", "out.html")
    assert result.exit_code == 1
    assert "out.html cannot be written" in result.stderr
    assert result.stdout.startswith("carriers v6 is the first bad commit")
    assert not [*tmp_path.glob(".*.tmp")]
