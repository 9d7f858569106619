"""Arguments of a wrong type: public functions raise a readable error before anything is done."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.client.app import StoredApp
from slackwater.client.client import Client
from slackwater.client.moment import Moment
from slackwater.client.when import moment_text
from slackwater.common.arguments import _argument_types, check_arguments, check_method_arguments
from slackwater.errors import Usage
from slackwater.snapshot.cut.refs import AtTime, Latest, parse_ref

from tests.support.histories import Clock, FlightsApp, Kafka, flights

NOW_MS = 1_795_245_120_000


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredApp]:
    from slackwater.store.objects.open import open_store

    root = str(tmp_path_factory.mktemp("store"))
    FlightsApp(open_store(root), Kafka(), clock=Clock()).run(flights(20))
    with sw.open(root) as client:
        yield client.app("flights")


def rows(messages: object) -> object:
    return messages


CALLS: dict[str, tuple[Callable[[StoredApp], object], str]] = {
    "at(5)": (lambda app: app.at(5), "at(): moment is 5; expected str, date or timedelta"),
    "at(None)": (lambda app: app.at(None), "at(): moment is None"),
    "at(Moment)": (lambda app: app.at(app.at()), "at(): moment is of type Moment"),
    "at(stage=3)": (lambda app: app.at(stage=3), "at(): stage is 3; expected str"),
    "at of a list": (lambda app: app.at(["-5m"]), "at(): moment is of type list"),
    "query(5)": (lambda app: app.at().query(5), "query(): sql is 5; expected str"),
    "get of no table": (lambda app: app.at().get(5, "C1"), "get(): table is 5; expected str"),
    "get_many of a text": (
        lambda app: app.at().get_many("carriers", "C1"),
        "get_many(): keys is 'C1'; expected a list",
    ),
    "get_many of a column": (
        lambda app: app.at().get_many("carriers", ["C1"], columns="delay"),
        "get_many(): columns is 'delay'; expected a list of str",
    ),
    "diff of a ref": (lambda app: app.at().diff("~1"), "diff(): other is '~1'; expected Moment"),
    "log of a text": (lambda app: app.log("5"), "log(): limit is '5'; expected a whole number"),
    "log(-1)": (lambda app: app.log(-1), "log(): limit is -1; expected 0 or more"),
    "history": (lambda app: app.history("carriers", "C1", limit=-3), "history(): limit is -3; expected 0 or more"),
    "bisect": (lambda app: app.bisect(where=5), "bisect(): where is 5; expected str"),
    "bisect by a name": (lambda app: app.bisect(python="f"), "bisect(): python is 'f'; expected a function or None"),
    "forget of a snapshot": (lambda app: app.forget("before"), "'before' is a table without a key"),
    "forget of a dict": (lambda app: app.forget({"carriers": "C1"}), "forget(): keys has 'carriers': 'C1'"),
    "forget of two": (
        lambda app: app.forget({"carriers": ["C1"]}, "C1"),
        "with a key as the second argument, the first must be the name of its table",
    ),
    "snapshot": (lambda app: app.snapshot(5), "snapshot(): name is 5; expected str"),
    "clone": (
        lambda app: app.clone("x", topics=["a"]),
        "clone(): topics is of type list; expected a dict of str to str",
    ),
    "compact": (lambda app: app.compact("carriers"), "compact(): stages is 'carriers'; expected a list of str"),
    "rescale": (lambda app: app.rescale("carriers", "3"), "rescale(): partitions is '3'; expected a whole number"),
    "promote": (lambda app: app.promote(over=5), "promote(): over is 5; expected str"),
    "export": (lambda app: app.at().export(5), "export(): path is 5; expected str or PathLike"),
    "client.app(5)": (lambda app: sw.open(app._client.root).app(5), "app(): name is 5; expected str"),
    "open(5)": (lambda _: sw.open(5), "open(): store is 5; expected str, Path or None"),
    "App(5)": (lambda _: sw.App(5), "App: name is 5; expected str"),
    "topic(5)": (lambda _: sw.topic(5), "topic name 5 is not usable: expected a topic's name"),
    "topic of a list": (lambda _: sw.topic(["a"]), "topic name ['a'] is not usable: expected a topic's name"),
    "repartition": (lambda _: sw.repartition("a", key=5), "repartition(): key is 5; expected a list of str or str"),
    "sum(5)": (lambda _: sw.sum(5), "sum(): column is 5; expected str"),
    "upsert(by=5)": (lambda _: sw.upsert(by=5), "upsert(): by is 5; expected str"),
    "join": (lambda _: sw.join(1, 2, within="5m"), "join(): left is 1; expected str"),
    "sink": (lambda _: sw.sink(5), "topic name 5 is not usable: expected a topic's name"),
    "foreach_version": (lambda _: sw.foreach_version(5), "foreach_version(): function is 5; expected a function"),
    "because": (lambda _: sw.because(5), "because(): message is 5; expected str"),
    "reads": (
        lambda _: sw.App("a").stage(reads=5)(rows),
        "stage 'rows' reads 5; expected a",
    ),
    "reads a list": (lambda _: sw.App("a").stage(reads=[sw.topic("t"), 5])(rows), "stage 'rows' reads 5; expected a"),
    "state=count()": (
        lambda _: sw.App("a").stage(reads=sw.topic("t"), key="k", state=sw.count())(rows),
        "stage 'rows': state is",
    ),
    "state of a dict": (
        lambda _: sw.App("a").stage(reads=sw.topic("t"), key="k", state={"n": sw.count()})(rows),
        "stage 'rows': state is dict",
    ),
    "table": (
        lambda _: sw.App("a").stage(reads=sw.topic("t"), table=4)(rows),
        "stage 'rows': table is 4",
    ),
    "run": (lambda _: sw.App("a").run(kafka=5), "run(): kafka is 5; expected str, a dict of str to str or None"),
    "run stages": (lambda _: sw.App("a").run(stages="x"), "run(): stages is 'x'; expected a list of str"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_raises_a_readable_error(app: StoredApp, name: str) -> None:
    call, expected = CALLS[name]
    with pytest.raises(Usage) as caught:
        call(app)
    assert caught.value.message.startswith(expected)


def test_a_decorator_without_parentheses_raises_a_readable_error() -> None:
    with pytest.raises(Usage, match=r"^@app\.stage is used without parentheses above 'rows'") as caught:

        @sw.App("a").stage  # type: ignore[call-arg,arg-type]
        def rows(messages: Any) -> Any:
            return messages

    assert caught.value.hint == "write @app.stage(reads=…) above def rows"


def test_a_string_in_place_of_a_list_gets_a_hint(app: StoredApp) -> None:
    with pytest.raises(Usage) as caught:
        app.compact("carriers")
    assert caught.value.hint == "write ['carriers'] for a single one"


def test_an_unknown_keyword_raises_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'read'"):
        sw.App("a").stage(read=sw.topic("t"))  # type: ignore[call-arg]


def public() -> Iterator[Any]:
    """Return all functions that users call, without decorators."""
    for name in sw.__all__:
        value = getattr(sw, name)
        if inspect.isfunction(value):
            yield inspect.unwrap(value, stop=lambda each: not hasattr(each, "__wrapped__"))
    for cls in (sw.App, Client, StoredApp, Moment):
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if inspect.isfunction(value) and not name.startswith("_") and hasattr(value, "__wrapped__"):
                    yield value.__wrapped__


def test_the_checker_knows_the_types_of_all_public_functions() -> None:
    functions = [*public()]
    assert len(functions) > 90
    for function in functions:
        _argument_types(function)


VALUES = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text(), max_size=2))


@given(value=VALUES)
def test_the_checker_accepts_what_the_annotations_allow(value: object) -> None:
    """Compare the result for each annotation with Python's `isinstance`."""

    def of_text(value: str) -> None: ...
    def of_text_or_none(value: str | None = None) -> None: ...
    def of_several(value: Sequence[str]) -> None: ...
    def of_names(value: Mapping[str, str]) -> None: ...
    def of_words(value: Literal["a", "b"]) -> None: ...
    def of_anything(value: object) -> None: ...
    def of_number(value: float) -> None: ...

    expected = {
        of_text: isinstance(value, str),
        of_text_or_none: value is None or isinstance(value, str),
        of_several: isinstance(value, list),
        of_names: False,
        of_words: value in ("a", "b"),
        of_anything: True,
        of_number: isinstance(value, int | float),
    }
    for function, fits in expected.items():
        with nullcontext() if fits else pytest.raises(Usage, match=rf"{function.__name__}\(\): value is "):
            check_arguments(function, declares=False)(value)


def test_a_checked_method_keeps_its_name_docstring_and_signature() -> None:
    @check_method_arguments
    class Example:
        def shown(self, name: str, *, limit: int = 3) -> str:
            """Show it."""
            return name * limit

        def _own(self, name: str) -> str:
            return name

    assert Example.shown.__doc__ == "Show it."
    assert str(inspect.signature(Example.shown)) == "(self, name: str, *, limit: int = 3) -> str"
    assert Example().shown("a") == "aaa"
    assert not hasattr(Example._own, "__wrapped__")


@given(st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=30_000)))
def test_a_timedelta_means_that_long_ago_whatever_its_sign(span: timedelta) -> None:
    expected = AtTime(NOW_MS - round(span / timedelta(milliseconds=1)))
    assert parse_ref(f"app@{moment_text(span)}", now_ms=NOW_MS).moment == expected
    assert parse_ref(f"app@{moment_text(-span)}", now_ms=NOW_MS).moment == expected


def test_a_zero_timedelta_is_now_and_a_date_is_its_first_instant() -> None:
    assert parse_ref(f"app@{moment_text(timedelta(0))}", now_ms=NOW_MS).moment == Latest()
    midnight = datetime(2026, 11, 20).astimezone()
    assert parse_ref(f"app@{moment_text(date(2026, 11, 20))}", now_ms=NOW_MS).moment == AtTime(
        round(midnight.timestamp() * 1_000)
    )
    noon = datetime(2026, 11, 20, 12, 0, 0, 500_000, tzinfo=UTC)
    assert parse_ref(f"app@{moment_text(noon)}", now_ms=NOW_MS).moment == AtTime(round(noon.timestamp() * 1_000))


def test_every_method_with_a_moment_takes_timedeltas_and_dates(app: StoredApp, tmp_path: Path) -> None:
    ago = timedelta(days=1)
    assert app.at(ago).versions == app.at("-1d").versions
    assert app.diff(date(2026, 1, 1), ago).equal
    assert app.rewind(ago, keep_offsets=True, dry_run=True).data is not None
    assert app.operations(since=ago).data == app.operations(since="-1d").data
