"""Dashboards and alerts in deploy/ name existing metrics and labels; alerts fire at their thresholds."""

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry
from slackwater.operations.disaster_recovery.replica_metrics import ReplicaMetrics
from slackwater.pipeline.run.monitoring import Metrics
from slackwater.serve.health.metrics import ServeMetrics

from tests.programs.go import built

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
RULES_TEST = RULES.with_name("rules_test.yaml")
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


def declared(*registries: CollectorRegistry) -> dict[str, set[str]]:
    """Return the labels of each metric by name."""
    found: dict[str, set[str]] = {}
    for registry in registries:
        for collector in registry._collector_to_names:
            kind, labels = getattr(collector, "_type", ""), {*getattr(collector, "_labelnames", ())}
            name = str(getattr(collector, "_name", ""))
            series = {
                "histogram": [(f"{name}_bucket", {"le"}), (f"{name}_count", set()), (f"{name}_sum", set())],
                "counter": [(f"{name}_total", set[str]())],
                "gauge": [(name, set[str]())],
            }[kind]
            found |= {each: labels | more for each, more in series}
    return found


METRICS = declared(Metrics().registry, ReplicaMetrics("a", "r").registry, ServeMetrics().registry)


def dashboard(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    """Yield all expressions with their places."""
    for path in DASHBOARDS:
        for panel in dashboard(path)["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"].replace("$__rate_interval", "5m")
    for rule in alerts():
        yield f"{RULES.name}: {rule['alert']}", rule["expr"]


def selectors(expression: str) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def visit(node: object) -> None:
        if isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(expression), visit)
    return found


def grouped(expression: str) -> Iterator[tuple[set[str], set[str]]]:
    """Yield, for each aggregation in an expression, its labels and the labels of its series."""
    found: list[promql.AggregateExpr] = []
    promql.walk(
        promql.parse(expression), lambda node: found.append(node) if isinstance(node, promql.AggregateExpr) else None
    )
    for each in found:
        if each.modifier is not None:
            names = [METRICS[str(one.name)] | SCRAPED for one in selectors(each.expr.prettify())]
            yield set(each.modifier.labels), set.intersection(*names)


EXPRESSIONS = dict(enumerate(expressions()))


@pytest.mark.parametrize("number", EXPRESSIONS, ids=lambda number: EXPRESSIONS[number][0])
def test_every_expression_uses_existing_metrics_and_labels(number: int) -> None:
    _, expression = EXPRESSIONS[number]
    found = selectors(expression)
    assert found
    for each in found:
        assert each.name in METRICS
        assert {one.name for one in each.matchers.matchers} <= METRICS[str(each.name)] | SCRAPED
    for by, there in grouped(expression):
        assert by <= there


def test_every_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    used = {str(each.name) for _, expression in expressions() for each in selectors(expression)}
    families = {name for name in METRICS if not name.endswith(("_count", "_sum"))}
    assert families - used == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_grafana_can_lay_out_every_dashboard(path: Path) -> None:
    board = dashboard(path)
    assert board["uid"] == path.stem
    panels = board["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    variables = {each["name"] for each in board["templating"]["list"]}
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel.get("targets", ()):
            assert {*re.findall(r"\$(\w+)", target["expr"])} - {"__rate_interval"} <= variables
    for one, other in combinations((each["gridPos"] for each in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_alert_has_a_severity_and_a_runbook_page() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        page, _, heading = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not heading or heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load(RULES_TEST.read_text(encoding="utf-8"))["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alerts()}
    series = (promql.parse(each["series"]) for test in tests for each in test["input_series"])
    assert {each.name for each in series} <= METRICS.keys()


@pytest.mark.ci
@pytest.mark.parametrize("words", [("check", "rules", RULES), ("test", "rules", RULES_TEST)], ids=["check", "test"])
def test_promtool_finds_nothing_wrong_with_the_alerts(words: tuple[str | Path, ...]) -> None:
    done = subprocess.run(
        [built("promtool"), *words], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
