"""Declared parameters are the same in Python, on the command line, over HTTP and for agents."""

import inspect
from typing import Any, get_type_hints

import pytest
from slackwater.cli.main import app
from slackwater.client.app import StoredApp
from slackwater.client.declared.questions import (
    DiffOptions,
    ImpactOptions,
    ReconcileOptions,
    SearchOptions,
    WhyNotOptions,
    WhyOptions,
    WrongOptions,
)
from slackwater.client.moment import Moment
from slackwater.client.remote import ServedApp, ServedMoment
from slackwater.common.arguments import all_parameters
from slackwater.serve import web  # noqa: F401  declares its routes
from slackwater.serve.agents import tools  # noqa: F401  declares them
from slackwater.serve.agents.declared import TOOLS
from slackwater.serve.declare import ENDPOINTS
from typer.main import get_command

ROUTES = {each.name: each.parameters for each in ENDPOINTS}
METHODS: dict[str, tuple[type, tuple[Any, ...]]] = {
    "diff": (DiffOptions, (Moment.diff, StoredApp.diff, ServedApp.diff, ServedMoment.diff)),
    "bisect": (SearchOptions, (StoredApp.bisect, ServedApp.bisect)),
    "why": (WhyOptions, (StoredApp.why, ServedApp.why)),
    "impact": (ImpactOptions, (StoredApp.impact, ServedApp.impact)),
    "reconcile": (ReconcileOptions, (StoredApp.reconcile, ServedApp.reconcile)),
    "why_not": (WhyNotOptions, (StoredApp.why_not, ServedApp.why_not)),
}


@pytest.mark.parametrize("question", METHODS)
def test_a_declared_parameter_exists_in_methods_routes_and_tools(question: str) -> None:
    declaration, methods = METHODS[question]
    names = get_type_hints(declaration).keys()
    for method in methods:
        assert names <= inspect.signature(method).parameters.keys()
        assert all(f"    {name}: " in method.__doc__ for name in names)
    for asked in (ROUTES[question], TOOLS[question].parameters):
        assert names <= {*asked.__struct_fields__}


def test_a_declared_parameter_is_an_option_of_the_verb() -> None:
    root: Any = get_command(app)
    for question, declaration in (
        ("diff", DiffOptions),
        ("bisect", WrongOptions),
        ("why", WhyOptions),
        ("impact", ImpactOptions),
        ("reconcile", ReconcileOptions),
        ("why-not", WhyNotOptions),
    ):
        options = {name for param in root.get_command(None, question).params for name in param.opts}
        assert {f"--{name}" for name in get_type_hints(declaration)} <= options


def test_an_undeclared_parameter_raises_pythons_own_error() -> None:
    moment: Any = Moment.diff
    with pytest.raises(TypeError, match=r"diff\(\) got an unexpected keyword argument 'tabel'"):
        moment(object(), object(), tabel="carriers")


def test_declared_parameters_precede_a_methods_own_keywords() -> None:
    assert [each.name for each in all_parameters(inspect.unwrap(StoredApp.bisect))][1:4] == ["where", "check", "good"]
