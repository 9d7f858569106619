"""What is asked of every store that `tests/kept` holds, and how answers of then and now are compared."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.cli import main
from typer.testing import CliRunner

KEPT = Path(__file__).parents[1] / "kept"
"""A folder for each version: `store`, `kafka.json`, `answers.json`. See `tests/documents/keep.py`."""

_REFS = (
    "flights",
    "flights@at-noon",
    "flights@before-deploy",
    "flights@2025-01-01T01:00Z",
    "staging",
    "staging/carriers@v7",
)
_CHANGED = ("changed", "changed/totals@v3", "changed/totals@v4", "begun", "begun/totals@v1")
_SHOP = ("shop", "shop/carts@v5", "shop/visits@v5", "shop/totals@v3", "shop/totals@v6")
_TOTALS = "SELECT * FROM {} ORDER BY ALL"
_IN_FLIGHT = "SELECT * FROM inflight('by-aircraft') ORDER BY ALL"

QUESTIONS: tuple[tuple[str, ...], ...] = (
    *(("query", ref, _TOTALS.format(table)) for ref in _REFS for table in ("aircraft", "carriers")),
    ("query", "flights@before-deploy", _IN_FLIGHT),
    ("query", "types", _TOTALS.format("rows")),
    ("query", "types/rows@v2", _TOTALS.format("rows")),
    ("get", "flights", "aircraft", "N001"),
    ("get", "flights@at-noon", "aircraft", "N003"),
    ("get", "flights", "aircraft", "N009"),
    ("get", "staging", "carriers", "C2"),
    ("log", "flights", "--limit", "1000"),
    ("log", "staging", "--limit", "1000"),
    ("log", "flights", "--operations"),
    ("log", "staging", "--operations"),
    ("snapshot", "list", "flights"),
    *(("snapshot", "show", "flights", name) for name in ("at-noon", "before-deploy", "clone-staging")),
    ("status", "flights"),
    ("status", "staging"),
    *(("verify", ref, *deep) for ref in (*_REFS, "types") for deep in ((), ("--deep",))),
    ("query", "lossy", _TOTALS.format("aircraft")),
    ("query", "lossy/carriers", _TOTALS.format("carriers")),
    ("query", "lossy@after-losses", _TOTALS.format("carriers")),
    ("query", "lossy@after-losses", _IN_FLIGHT),
    ("log", "lossy", "--limit", "1000"),
    ("log", "lossy", "--operations"),
    ("snapshot", "list", "lossy"),
    ("snapshot", "show", "lossy", "after-losses"),
    ("status", "lossy"),
    *(
        ("verify", ref, *deep)
        for ref in ("lossy", "lossy@after-losses", "lossy/carriers")
        for deep in ((), ("--deep",))
    ),
    *(("query", ref, _TOTALS.format("totals")) for ref in _CHANGED),
    *(("verify", ref, *deep) for ref in _CHANGED for deep in ((), ("--deep",))),
    *(("get", app, "totals", key) for app in ("changed", "begun") for key in ("N1", "N2", "N3")),
    *((verb, app) for verb in ("status", "log") for app in ("changed", "begun")),
    *(("log", app, "--operations") for app in ("changed", "begun")),
    *(("history", app, "totals", key) for app in ("changed", "begun") for key in ("N2", "N3")),
    ("diff", "changed/totals@v3", "changed"),
    ("diff", "begun/totals@v1", "begun"),
    ("snapshot", "list", "changed"),
    ("bisect", "changed", "--where", "FROM totals WHERE minutes = 90"),
    *(("query", ref, _TOTALS.format(table)) for ref in _SHOP for table in ("totals", "visits")),
    ("query", "shop/carts@v5", _TOTALS.format("carts")),
    ("query", "shop", _TOTALS.format("visits_rejected")),
    *(("get", "shop/carts@v5", table, "ada") for table in ("carts", "visits")),
    ("get", "shop", "totals", "BE"),
    ("log", "shop", "--limit", "1000"),
    ("log", "shop", "--operations"),
    ("status", "shop"),
    ("rejected", "shop"),
    ("rejected", "shop", "--all"),
    ("history", "shop", "visits", "ada"),
    ("history", "shop", "totals", "BE"),
    ("diff", "shop/totals@v3", "shop"),
    ("snapshot", "list", "shop"),
    *(("verify", ref, *deep) for ref in ("shop", "shop/carts@v5") for deep in ((), ("--deep",))),
    ("bisect", "flights", "--where", "SELECT carrier, delay FROM carriers WHERE delay > 1000"),
)
"""Words of the command line. What goes by the ages of files is not here: a checkout makes all of them new."""

_PASSING = frozenset(("bytes_read", "checks", "evaluations", "read", "requests"))
"""What reading took, and how much was looked at: a later version may do with less, or look at more."""


def ask(store: Path, words: Sequence[str], cache: Path) -> dict[str, Any]:
    """What the command line answers, as JSON, and its exit code."""
    environment = {"SLACKWATER_STORE": str(store), "SLACKWATER_CACHE": str(cache)}
    answered = CliRunner().invoke(main.app, [*words, "--json"], env=environment, catch_exceptions=False)
    return {"exit": answered.exit_code, "answer": _without_times(json.loads(answered.stdout))}


def _without_times(answer: Any) -> Any:
    """Answers say how long they took, which is never the same."""
    if isinstance(answer, list):
        return [_without_times(each) for each in answer]
    if isinstance(answer, dict):
        return {name: _without_times(each) for name, each in answer.items() if name != "took_ms"}
    return answer


def comparable(words: Sequence[str], answer: Any) -> Any:
    """An answer without what 0.1.0 answered otherwise, for good reason."""
    match words[0]:
        case "bisect":
            # It named the stage's version before; since then it names the commit before, of whichever stage.
            good = {name: value for name, value in answer["last_good"].items() if name not in ("ref", "time_ms")}
            return answer | {"last_good": good}
        case "log" if "--operations" not in words:
            # Commits of one millisecond came by name; since then senders come first.
            return sorted(answer, key=lambda entry: (-entry["time_ms"], entry["stage"], entry["version"]))
    return answer


def lasts(then: Any, now: Any, at: str = "") -> list[str]:
    """Where what was answered then is not what is answered now; what has come since does not matter."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        gone = [f"{at}: no {name!r} any more" for name in then if name not in now and name not in _PASSING]
        shared = [name for name in then if name in now and name not in _PASSING]
        return gone + [line for name in shared for line in lasts(then[name], now[name], f"{at}.{name}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [line for i, pair in enumerate(zip(then, now, strict=True)) for line in lasts(*pair, f"{at}[{i}]")]
    return [] if then == now else [f"{at}: was {then!r}, is {now!r}"]
