"""Declarations of an app: invalid ones are refused where they are written."""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import slackwater as sw
from pyspark.errors import AnalysisException
from slackwater import App
from slackwater.errors import NotFound, Refused, Usage
from slackwater.pipeline.api.sink import FunctionSink, TopicSink
from slackwater.pipeline.batch.transform import apply_to_streams
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.preflight import limits_of
from slackwater.pipeline.run.program import load_app


def rows(frame: object) -> object:
    return frame


def chain() -> sw.App:
    app = sw.App("shop")
    app.stage(name="orders", reads=sw.topic("orders"), writes=sw.repartition("by-user", "user"))(rows)
    return app


def test_a_stage_takes_its_name_from_its_function_and_its_key_from_its_channel() -> None:
    app = chain()

    @app.stage(reads="by-user", state=sw.aggregate(n=sw.count()))
    def users(frame: object) -> object:
        return frame

    assert list(app.stages) == ["orders", "users"]
    assert app.key_of(app.stages["users"]) == ("user",)
    assert app.writer_of("by-user").name == "orders"


def test_a_repartition_topic_can_be_read_by_object_or_name() -> None:
    app, by_user = sw.App("shop"), sw.repartition("by-user", "user")
    app.stage(name="orders", reads=sw.topic("orders"), writes=by_user)(rows)
    for name, reads in (("one", by_user), ("several", [by_user]), ("named", "by-user")):
        app.stage(name=name, reads=reads, state=sw.aggregate(n=sw.count()))(rows)
    assert {app.stages[name].reads for name in ("one", "several", "named")} == {("by-user",)}
    with pytest.raises(Usage, match="different names"):
        app.stage(name="twice", reads=(by_user, "by-user"), state=sw.aggregate(n=sw.count()))(rows)


def test_two_stages_may_read_one_channel() -> None:
    app = chain()
    for name in ("users", "audit"):
        app.stage(name=name, reads="by-user", state=sw.aggregate(n=sw.count()))(rows)
    assert [stage.name for stage in app.select_stages(())] == ["orders", "users", "audit"]


def test_the_error_for_an_unknown_channel_names_the_nearest() -> None:
    app = chain()
    app.stage(name="users", reads="by-users", state=sw.aggregate(n=sw.count()))(rows)
    with pytest.raises(NotFound, match="the nearest: by-user"):
        app.stages_in_order()


def test_stages_are_sorted_upstream_first_in_any_order_of_declaration() -> None:
    app = sw.App("shop")
    app.stage(name="users", reads=("by-user", "by-visitor"), state=sw.aggregate(n=sw.count()))(rows)
    app.stage(name="visits", reads=sw.topic("visits"), writes=sw.repartition("by-visitor", "user"))(rows)
    app.stage(name="orders", reads=sw.topic("orders"), writes=sw.repartition("by-user", "user"))(rows)
    assert [stage.name for stage in app.stages_in_order()] == ["orders", "visits", "users"]
    assert app.key_of(app.stages["users"]) == ("user",)


def test_a_cycle_is_refused_and_the_error_shows_it() -> None:
    app = sw.App("shop")
    app.stage(name="a", reads="z", writes=sw.repartition("x", "k"))(rows)
    app.stage(name="b", reads="x", writes=sw.repartition("y", "k"))(rows)
    with pytest.raises(Refused, match=r"'c' closes a cycle: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)"):
        app.stage(name="c", reads="y", writes=sw.repartition("z", "k"))(rows)
    assert list(app.stages) == ["a", "b"]
    with pytest.raises(Refused, match="d -> d"):
        app.stage(name="d", reads="w", writes=sw.repartition("w", "k"))(rows)


def test_inputs_with_different_keys_are_refused_and_both_are_named() -> None:
    app = chain()
    app.stage(name="visits", reads=sw.topic("visits"), writes=sw.repartition("by-page", ["page", "user"]))(rows)
    both = ("by-user", "by-page")
    app.stage(name="joined", reads=both, state=sw.aggregate(n=sw.count()))(rows)
    with pytest.raises(Usage, match=r"'by-user' by \(user\), 'by-page' by \(page, user\)"):
        app.stages_in_order()
    del app.stages["joined"]
    app.stage(name="joined", reads=both, key="user", state=sw.aggregate(n=sw.count()))(rows)
    assert app.key_of(app.stages["joined"]) == ("user",)


def test_duplicate_inputs_and_objects_that_are_no_inputs_are_refused() -> None:
    for reads in ((), ("by-user", "by-user"), (sw.topic("by-user"), "by-user")):
        with pytest.raises(Usage, match="different names"):
            chain().stage(name="users", reads=reads, state=sw.aggregate(n=sw.count()))(rows)
    with pytest.raises(Usage, match="stage 'users' reads 7; expected"):
        chain().stage(name="users", reads=("by-user", 7), state=sw.aggregate(n=sw.count()))(rows)  # type: ignore[arg-type]


def test_two_stages_with_the_same_name_are_refused() -> None:
    with pytest.raises(Usage, match="two stages named 'orders'"):
        chain().stage(name="orders", reads="by-user", state=sw.aggregate(n=sw.count()))(rows)


def test_two_writers_of_a_channel_are_refused() -> None:
    with pytest.raises(Usage, match="two writers"):
        chain().stage(name="more", reads=sw.topic("x"), writes=sw.repartition("by-user", "user"))(rows)


def test_state_without_a_key_is_refused() -> None:
    app = chain()
    app.stage(name="n", reads=sw.topic("orders"), state=sw.aggregate(n=sw.count()))(rows)
    with pytest.raises(Usage, match="has no key"):
        app.stages_in_order()


def test_a_stage_without_state_or_output_is_refused() -> None:
    with pytest.raises(Refused, match="would do nothing"):
        chain().stage(name="n", reads="by-user")(rows)


def test_the_error_for_an_unknown_stage_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="orders"):
        chain().select_stages(["order"])


@pytest.mark.parametrize("name", ["", "Shop", "a/b", "-shop", "ä", "x" * 64])
def test_names_that_cannot_be_object_keys_are_refused(name: str) -> None:
    with pytest.raises(Usage, match="not usable"):
        sw.App(name)


def test_invalid_declarations_are_refused() -> None:
    with pytest.raises(Usage, match="earliest"):
        sw.topic("orders", starting_offsets="first")
    with pytest.raises(Usage, match="1 to 262144"):
        sw.repartition("by-user", "user", partitions=0)
    with pytest.raises(Usage, match="no name twice"):
        sw.repartition("by-user", ["user", "user"])
    with pytest.raises(Usage, match="at least one column"):
        sw.aggregate()
    with pytest.raises(Usage, match="count"):
        sw.aggregate(n=1)  # type: ignore[arg-type]


def test_run_options_override_the_programs_batch_limits() -> None:
    app = sw.App("a")
    declared = {"max_records": 500, "trigger": "10 seconds", "max_unflushed": 3}
    for name, knobs in (("silent", {}), ("explicit", declared)):
        app.stage(name=name, reads=sw.topic("t"), writes=sw.repartition(name, "k"), **knobs)(rows)  # type: ignore[arg-type]

    def bounds(name: str, **said: object) -> tuple[int | None, int, int]:
        limits = limits_of(app.stages[name], Options(store="s", kafka={}, **said))  # type: ignore[arg-type]
        return limits.max_records, limits.trigger_ms, limits.max_unflushed

    assert bounds("silent") == (None, 0, 0)
    assert bounds("explicit") == (500, 10_000, 3)
    said = {"max_records": 70_000, "trigger_ms": 1_000, "max_unflushed": 1}
    assert bounds("silent", **said) == bounds("explicit", **said) == (70_000, 1_000, 1)
    assert bounds("explicit", trigger_ms=0, max_unflushed=0) == (500, 0, 0)
    with pytest.raises(Usage, match="max_unflushed is -1"):
        bounds("silent", max_unflushed=-1)


def test_a_file_can_be_loaded_under_another_name_for_a_clone(tmp_path: object) -> None:
    assert load_app("examples/flights.py", name="staging").name == "staging"
    assert list(load_app("examples/flights.py").stages) == ["legs", "aircraft", "carriers"]


def test_a_file_without_an_app_is_refused(tmp_path: object) -> None:
    with pytest.raises(Usage, match="declares no app; expected one"):
        load_app("examples/feed.py")
    with pytest.raises(NotFound, match=r"flights\.py"):
        load_app("examples/flight.py")


def test_a_folder_is_not_a_program(tmp_path: Path) -> None:
    (tmp_path / "shop.py").touch()
    with pytest.raises(Usage, match="is a folder; expected a Python file") as caught:
        load_app(str(tmp_path))
    assert caught.value.hint.endswith(": shop.py")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., App]:
    """Load a program with these lines from a new folder; `more` are further files by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))

    def load(*lines: str, **siblings: str) -> App:
        for name, text in {"shop": "\n".join(lines), **siblings}.items():
            (tmp_path / f"{name}.py").write_text(text)
        return load_app("shop.py")

    return load


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["", "1 / 0"], "shop.py, line 2: ZeroDivisionError: division by zero"),
        (["import nosuch"], "shop.py, line 1: ModuleNotFoundError: No module named 'nosuch'"),
        (["", "f(1", "  2)"], "shop.py, line 2: SyntaxError: invalid syntax. Perhaps you forgot a comma?"),
        (["assert False"], "shop.py, line 1: AssertionError"),
        (
            ["import slackwater as sw", "app = sw.App('shop')", "@app.stage(keys='user')", "def legs(rows): ..."],
            "shop.py, line 3: TypeError: App.stage() got an unexpected keyword argument 'keys'",
        ),
        (
            ["import json", "json.loads('')"],
            "shop.py, line 2: JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
    ],
)
def test_an_error_in_a_program_is_reported_with_its_line(
    program: Callable[..., App], lines: list[str], said: str
) -> None:
    with pytest.raises(Refused) as caught:
        program(*lines)
    assert caught.value.message == f"the program does not run: {said}"
    next_steps = ("run again (SLACKWATER_DEBUG=1 shows the traceback)", "and run again", "; the nearest is 'key'")
    assert caught.value.hint.endswith(next_steps)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("line", ["F.udf('long')(len)", "F.pandas_udf(len, 'long')", "F.col('key')"])
def test_a_call_that_needs_spark_before_it_starts_gets_a_hint(line: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"from pyspark.sql import functions as F\n{line}\n")
    load = "from slackwater.pipeline.run.program import load_app; load_app('shop.py')"
    done = subprocess.run([sys.executable, "-c", load], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Refused: the program does not run: shop.py, line 2: " in done.stderr
    assert "hint: Spark starts after the program is read: call Spark's functions inside the function" in done.stderr


def test_another_error_of_a_spark_call_gets_no_such_hint(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from pyspark.sql import types as T\nT.StructType([1])\n")
    load = "from slackwater.pipeline.run.program import load_app; load_app('shop.py')"
    done = subprocess.run([sys.executable, "-c", load], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Refused: the program does not run: shop.py, line 2: " in done.stderr
    assert "hint: fix it and run again" in done.stderr


def test_an_error_in_an_imported_module_is_reported_with_the_line_there(program: Callable[..., App]) -> None:
    with pytest.raises(Refused, match=r": prices_of_shop\.py, line 2: KeyError: 'tea'"):
        program("import prices_of_shop", prices_of_shop="\n{}['tea']")
    with pytest.raises(Refused, match=r": stock_of_shop\.py, line 3: SyntaxError: "):
        program("import stock_of_shop", stock_of_shop="\n\n1 +")


def test_an_error_of_ours_in_a_program_is_raised_unchanged(program: Callable[..., App]) -> None:
    with pytest.raises(Usage, match=r"^app name 'My Shop'"):
        program("import slackwater as sw", "sw.App('My Shop')")


def test_an_error_in_a_stage_is_reported_with_the_line_of_its_function() -> None:
    app = sw.App("shop")

    @app.stage(reads=sw.topic("orders"), writes=sw.repartition("by-user", "user"))
    def orders() -> object:
        return 1 / 0

    line = orders.__code__.co_firstlineno
    with pytest.raises(Refused, match=rf"^stage 'orders' does not run: .*test_app\.py, line {line + 2}: ZeroDivision"):
        apply_to_streams(app.stages["orders"], {})
    with pytest.raises(Refused, match=rf"test_app\.py, line {line}: TypeError: .*takes 0 positional arguments"):
        apply_to_streams(app.stages["orders"], {"orders": None})  # type: ignore[dict-item]


def test_sparks_error_in_a_stage_keeps_its_sentence_and_gets_the_line() -> None:
    app = sw.App("shop")

    @app.stage(reads=sw.topic("orders"), writes=sw.repartition("by-user", "user"))
    def orders() -> object:
        raise AnalysisException("no column `usr`", errorClass="UNRESOLVED_COLUMN")

    with pytest.raises(Refused, match=r"test_app\.py, line \d+: \[UNRESOLVED_COLUMN\] no column `usr`(\n|$)"):
        apply_to_streams(app.stages["orders"], {})


def test_errors_are_exported_by_the_package() -> None:
    with pytest.raises(sw.errors.SlackwaterError):
        sw.App("no such name")
    assert all(issubclass(getattr(sw.errors, name), sw.errors.SlackwaterError) for name in sw.errors.__all__)


def test_the_packages_all_lists_its_names() -> None:
    assert all(getattr(sw, name) is not None for name in sw.__all__)
    with pytest.raises(AttributeError, match="no attribute 'agregate'; the nearest is 'aggregate'"):
        _ = sw.agregate  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'avg'; did you mean 'mean'"):
        _ = sw.avg  # type: ignore[attr-defined]
    assert set(sw._FOREIGN_NAMES.values()) <= {*sw.__all__}


def test_l0_slowdown_must_be_below_l0_stop() -> None:
    with pytest.raises(Usage, match="l0_slowdown is 40 and l0_stop is 36"):
        sw.table(l0_slowdown=40, l0_stop=36)


@pytest.mark.parametrize("value", [-1, 2.0, 4.5, True, math.inf, math.nan, "4"])
@pytest.mark.parametrize("knob", ["max_records", "max_unflushed"])
def test_counts_of_a_stage_must_be_whole_numbers(knob: str, value: object) -> None:
    app = sw.App("a")
    with pytest.raises(Usage, match=rf"stage 's': {knob} is {value!r}; expected a whole number, [012] "):
        app.stage(name="s", reads=sw.topic("t"), writes=sw.repartition("r", "k"), **{knob: value})(rows)  # type: ignore[arg-type]
    assert not app.stages


@pytest.mark.parametrize("value", [-1, 2.0, 4.5, True, math.inf, math.nan, "4"])
@pytest.mark.parametrize("knob", ["partitions", "l0_slowdown", "l0_stop"])
def test_counts_of_a_table_must_be_whole_numbers(knob: str, value: object) -> None:
    with pytest.raises(Usage, match=rf"table: {knob} is {value!r}; expected a whole number, [12] "):
        sw.table(**{knob: value})  # type: ignore[arg-type]


def test_numpy_integers_are_accepted_as_counts() -> None:
    assert type(sw.table(partitions=np.int64(2)).partitions) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [0, 2.0, True, math.nan])
def test_the_partitions_of_a_topic_must_be_a_whole_number(partitions: float) -> None:
    with pytest.raises(Usage, match=f"partitions is {partitions}; expected a whole number, 1 to 262144"):
        sw.repartition("r", "k", partitions=partitions)  # type: ignore[arg-type]


def test_a_bare_number_as_time_span_is_refused_with_a_hint() -> None:
    with pytest.raises(Usage, match="ttl 7 is not a span of time"):
        sw.table(ttl=7)  # type: ignore[arg-type]
    app = sw.App("a")
    app.stage(name="s", reads=sw.topic("t"), writes=sw.repartition("r", "k"))(rows)  # type: ignore[arg-type]
    with pytest.raises(Usage, match=r"run\(\): trigger is 10; expected str or None") as caught:
        app.run(store="s", kafka="k", trigger=10)  # type: ignore[arg-type]
    assert caught.value.hint == "a span of time is text, such as '10 seconds' or '7d'"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"on_error": "skip"}, 'on_error is \'skip\'; expected "stop" or "reject"'),
        ({"max_rejected": 5}, "has max_rejected=, but rejects no records"),
        ({"rejects": "dead"}, "has rejects=, but rejects no records"),
        ({"on_error": "reject", "max_rejected": 0}, "max_rejected"),
        ({"on_error": "reject", "rejects": "no topic!"}, "topic name 'no topic!' is not usable"),
        (
            {"on_error": "reject", "rejects": "orders"},
            "topic 'orders' is for rejected records",
        ),
    ],
)
def test_invalid_combinations_of_on_error_options_are_refused(more: dict[str, object], said: str) -> None:
    app = sw.App("shop")
    with pytest.raises(Usage, match=re.escape(said)):
        app.stage(reads=sw.topic("orders"), key="a", state=sw.aggregate(n=sw.count()), **more)(rows)  # type: ignore[call-overload]


@pytest.mark.parametrize("names", [("legs", "legs_rejected"), ("legs_rejected", "legs")])
def test_no_stage_may_have_the_name_of_anothers_table_of_rejected_records(names: tuple[str, str]) -> None:
    app = sw.App("shop")

    def declare(name: str) -> None:
        state = sw.aggregate(n=sw.count())
        app.stage(reads=sw.topic("orders"), key="a", state=state, name=name, on_error="reject")(rows)

    declare(names[0])
    with pytest.raises(
        Usage, match="stage 'legs_rejected' has the name of a table: that of the rejected records of 'legs'"
    ):
        declare(names[1])


@pytest.mark.parametrize("late", [sw.sink("late", key="user"), sw.foreach_version(lambda *_: None, name="late")])
def test_late_rows_can_go_to_a_sink_besides_the_stages_outputs(late: TopicSink | FunctionSink) -> None:
    app, by_user, state = sw.App("shop"), sw.repartition("by-user", "user"), sw.aggregate(n=sw.count())
    times = sw.event_time(late=late)
    app.stage(name="hours", reads=sw.topic("t"), key="hour", writes=by_user, state=state, event_time=times)(rows)
    stage = app.stages["hours"]
    assert (stage.emits_to, stage.sinks, stage.late_output) == ((by_user,), (late,), late)
    with pytest.raises(Usage, match="writes 'late' twice"):
        app.stage(name="twice", reads=sw.topic("t"), key="hour", writes=late, state=state, event_time=times)(rows)


def test_sending_late_rows_back_to_the_input_topic_is_refused() -> None:
    app, times = sw.App("shop"), sw.event_time(late=sw.sink("t"))
    with pytest.raises(Refused, match="records would circulate forever"):
        app.stage(name="hours", reads=sw.topic("t"), key="hour", state=sw.aggregate(n=sw.count()), event_time=times)(
            rows
        )


def test_late_rows_can_go_to_a_channel_besides_the_stages_outputs() -> None:
    app, late, by_user = sw.App("shop"), sw.repartition("late", "user"), sw.repartition("by-user", "user")
    times = sw.event_time(late=late, ahead="90m")
    state = sw.aggregate(n=sw.count())
    app.stage(name="hours", reads=sw.topic("t"), key="hour", writes=by_user, state=state, event_time=times)(rows)
    app.stage(name="missed", reads=late, state=state)(rows)
    stage = app.stages["hours"]
    assert (stage.writes, stage.emits_to, stage.late_output) == ((by_user, late), (by_user,), late)
    assert (times.ahead_ms, sw.event_time().ahead_ms, sw.event_time().late) == (5_400_000, 86_400_000, "drop")
    with pytest.raises(Usage, match="two writers"):
        app.stage(name="again", reads=sw.topic("t"), key="hour", state=state, event_time=times)(rows)


def test_a_table_of_late_rows_is_a_separate_stage() -> None:
    app, state = sw.App("shop"), sw.aggregate(n=sw.count())
    times = sw.event_time(late="table")
    app.stage(name="hours", reads=sw.topic("t"), key=["hour", "user"], state=state, event_time=times)(rows)
    hours, late = app.stages["hours"], app.stages["hours_late"]
    assert [(one.name, one.key) for one in hours.writes] == [("hours-late", ("hour", "user"))]
    assert (late.channels, late.state, late.event_time.late) == (("hours-late",), state, "keep")
    assert app.key_of(late) == hours.key
    assert app.stages_in_order() == (hours, late)
    for wrong in ({"key": "hour", "writes": sw.repartition("c", "user")}, {"state": state}):
        with pytest.raises(Usage, match="has a table of late rows, but no"):
            app.stage(name="wrong", reads=sw.topic("t"), event_time=times, **wrong)(rows)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"ahead": "soon"}, "no span|not a span"),
        ({"ahead": "9999999 days"}, "1,000,000 days"),
        ({"late": "later"}, "late is 'later'; expected 'drop'"),
        ({"late": 5}, r"late is 5; expected .* or a slackwater.sink\(...\)"),
    ],
)
def test_impossible_event_time_options_are_refused(declared: dict[str, str], said: str) -> None:
    with pytest.raises(Usage, match=said):
        sw.event_time(**declared)  # type: ignore[arg-type]
