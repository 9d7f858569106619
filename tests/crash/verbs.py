"""Apps on which verbs are killed, the verbs' command lines, and a description of a store's whole content afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from slackwater.cli import main
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.kafka import channels
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.versions import apps, history, keys
from typer.testing import CliRunner, Result

from tests.crash.points import NumberedBroker
from tests.operations.repair.rejected.rejecting import reject
from tests.support.collecting import HOUR_MS, aging_app, fresh, keys_of, store_of, wait
from tests.support.histories import FlightsApp, flights, rows_of


def app_of() -> FlightsApp:
    """Return an app with a snapshot, records in flight, and SSTs that can be merged."""
    app = aging_app()
    app.run(flights(30))
    app.send(*flights(6))
    app.step("legs")
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "good", by="ada@host", reader=app.kafka)
    return app


def gone_on() -> FlightsApp:
    """Return the app of `app_of` after more commits."""
    app = app_of()
    app.run(flights(20, delay=9))
    return app


def with_old_history() -> FlightsApp:
    """Return the app of `app_of` with history old enough to be collected."""
    app = app_of()
    wait(app)
    app.run(flights(40))
    wait(app)
    return app


def with_clone() -> FlightsApp:
    """Return an app that was cloned as `staging` long ago, and has committed since."""
    app = app_of()
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    app.run(flights(20, delay=9))
    app.step_all()
    wait(app)
    return app


def with_rejected() -> FlightsApp:
    """Return the app of `gone_on` with two rejected records."""
    app = gone_on()
    reject(app, "carriers", [3, 4], Path(mkdtemp()))
    return app


def with_token() -> FlightsApp:
    app = app_of()
    with pytest.MonkeyPatch.context() as patch, command_line(app, patch):
        assert slackwater("token", "add", "reports", "--app", "flights").exit_code == 0
    return app


@contextmanager
def command_line(app: FlightsApp, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let verbs in the block use the app's store and its Kafka."""
    kafka = NumberedBroker(app.kafka, store_of(app))
    patch.setattr("slackwater.store.objects.open.open_store", lambda _root, **_settings: app.store)
    patch.setattr(channels, "KafkaChannels", lambda _properties: kafka)
    patch.setattr("slackwater.pipeline.kafka.open.open_kafka", lambda _properties, *_: kafka)
    # Removals wait for the store's clock, which does not advance.
    patch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    patch.setenv("SLACKWATER_STORE", "memory")
    patch.setenv("SLACKWATER_KAFKA", "memory:1")
    with TemporaryDirectory(ignore_cleanup_errors=True) as cache:  # copies of an app have the same SSTs
        patch.setenv("SLACKWATER_CACHE", cache)
        yield


def slackwater(*words: str) -> Result:
    result = CliRunner().invoke(main.app, words)
    assert "this is a bug" not in result.output, result.output
    return result


@dataclass(frozen=True)
class Case:
    """Command line of a verb, the app for it, and the verb's output when it is repeated."""

    build: Callable[[], FlightsApp]
    words: tuple[str, ...]
    done_already: str
    """Part of the output when the verb is repeated. The verb must succeed then, unless this begins with "error"."""
    varies: tuple[str, ...] = ()
    """Parts of `described` that may differ when several calls share the verb's work."""


_MERGES = ("operations", "versions")
"""Parts that vary: the log shows a part of the work for each call, and the number of merges depends on timing."""
CASES: dict[str, Case] = {
    "clone": Case(app_of, ("clone", "flights", "staging"), "done already: staging in"),
    "clone of a snapshot": Case(app_of, ("clone", "flights@good", "staging"), "done already: staging in"),
    "clone --empty": Case(app_of, ("clone", "flights", "staging", "--empty"), "done already: staging in"),
    "clone refresh": Case(with_clone, ("clone", "refresh", "staging"), "", ("operations",)),
    "clone rm": Case(with_clone, ("clone", "rm", "staging"), "done already: staging", ("operations",)),
    "app rm": Case(app_of, ("app", "rm", "flights", "--yes-really", "flights"), "done already", ("operations",)),
    "snapshot take": Case(
        app_of, ("snapshot", "take", "flights", "held", "--instant"), "done already: snapshot flights@held"
    ),
    "snapshot rm": Case(app_of, ("snapshot", "rm", "flights", "good"), "done already: flights@good was removed"),
    "rescale": Case(
        app_of, ("rescale", "flights/carriers", "--partitions", "3"), "done already: flights/carriers has 3"
    ),
    "compact": Case(
        app_of,
        ("compact", "flights", "--full", "--stage", "carriers"),
        "done already: nothing to merge in flights; merged carriers by v",
        _MERGES,
    ),
    "rewind": Case(gone_on, ("rewind", "flights@good"), "done already: flights has the state of flights@good"),
    "reset": Case(
        app_of,
        ("reset", "flights", "--topic", "flights", "--shift-by", "-2"),
        "done already: flights continues at these offsets",
    ),
    "edit": Case(
        app_of,
        ("edit", "flights/carriers", "--sql", "UPDATE carriers SET flights = flights + 1"),
        "done already: flights/carriers v",
    ),
    "forget": Case(app_of, ("forget", "flights", "--key", "carriers=C1"), "error: no object of flights", _MERGES),
    "retire": Case(app_of, ("retire", "flights/carriers"), "done already"),
    "protect": Case(app_of, ("protect", "flights"), "done already: flights is protected by "),
    "rejected --retry": Case(with_rejected, ("rejected", "flights", "--retry"), ""),
    "token add": Case(
        # A secret that was never shown is lost: the hint tells how to make another one.
        app_of,
        ("token", "add", "reports", "--app", "flights"),
        "error: token 'reports' already exists",
        ("operations",),
    ),
    "token rm": Case(with_token, ("token", "rm", "reports"), "done already: token reports was removed"),
    "gc": Case(with_old_history, ("gc", "flights", "--versions", "1"), "collected nothing of flights", _MERGES),
}


def described(app: FlightsApp, varies: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe everything in the store except ids, times, offsets, and the parts named in `varies`."""
    store = app.store
    found: dict[str, Any] = {}
    for name in apps.list_apps(store):
        stages = history.list_stages(store, name)
        heads = {stage: history.head(store, name, stage) for stage in stages}
        cut = resolve(store, name, now_ms=app.clock.now_ms) if stages else None
        of_app = {
            "versions": {stage: history.list_versions(store, name, stage) for stage in stages},
            "kinds": {stage: (head.kind, head.epoch) for stage, head in heads.items() if head is not None},
            "rows": {stage: rows_of(store, head) for stage, head in heads.items() if head is not None},
            "partitions": {s: head.table.partitions for s, head in heads.items() if head is not None and head.table},
            "side tables": {
                s: {n: side.rows for n, side in head.side_tables.items()} for s, head in heads.items() if head
            },
            "in flight": [(f.channel, f.receiver, f.rows, f.counts) for f in (in_flight(store, cut) if cut else ())],
            "snapshots": [(s.name, s.kind, s.stages, s.clone) for s in list_snapshots(store, name)],
            "requests": open_requests(store, name),
            "retries": len(keys_of(store_of(app), f"{name}/retries/")),
            "edits": len(keys_of(store_of(app), f"{name}/edits/")),
            "operations": sorted(
                {(done.verb, done.detail.replace(store.url, "")) for done in list_operations(store, name)}
            ),
        }
        found[name] = {part: value for part, value in of_app.items() if part not in varies}
    found["groups"] = sorted(app.kafka.groups)
    found["tokens"] = sorted(key for key in keys_of(store_of(app), keys.TOKENS))
    return found


def check_consistent(app: FlightsApp) -> None:
    for name in apps.list_apps(app.store):
        if not history.list_stages(app.store, name):
            continue  # a clone without state
        report = verify(fresh(app.store), name, now_ms=app.clock.now_ms, deep=True, reader=None)
        assert [difference.message for difference in report.differences] == []


def check_no_litter(app: FlightsApp) -> None:
    """Check that the next collection removes all leftovers, and that nothing remains to collect after it."""
    store = store_of(app)
    wait(app, 3 * HOUR_MS)
    for name in apps.list_apps(store):
        runner = FlightsApp(store, app.kafka, name, clock=app.clock, start=())
        for stage in history.list_stages(store, name):
            head = history.head(store, name, stage)
            if head is not None and not head.retired:
                runner.claim(stage)
    wait(app, 3 * HOUR_MS)
    for name in apps.list_apps(store):
        collect(store, name, Retention(), by="test")
    named = {key for name in apps.list_apps(store) for s in list_snapshots(store, name) for key in s.object_keys}
    kept = {key for key in keys_of(store) if "/snapshots/" in key and key.endswith(".parquet")}
    assert kept == named
    unfinished = ("_cloning/", "_removing/", "forgetting.json", "refreshing.json")
    assert [key for key in keys_of(store) if any(part in key for part in unfinished)] == []
