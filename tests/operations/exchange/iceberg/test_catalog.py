"""Exported tables in catalogs: entries follow the exports, and each client of a catalog reads the newest rows."""

import os
import shutil
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.utils.config import Config
from slackwater.common.durations import HOUR_MS
from slackwater.errors import Refused, SlackwaterError, Unavailable, Usage
from slackwater.operations.exchange.iceberg.catalog import CatalogNamespace
from slackwater.operations.exchange.iceberg.export import IcebergExport, WrittenTable
from slackwater.operations.exchange.iceberg.table import IcebergTable
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.open import open_store
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache

from tests.operations.exchange.iceberg.reading import rows
from tests.operations.exchange.iceberg.rest_catalog import RestCatalog, rest_catalog
from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.s3_servers import moto

KINDS = ["sql", "rest", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("glue", "rest-without-overwrite"))]


@pytest.fixture(scope="module")
def glue_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


class Catalogs:
    """Catalogs for tests, each new and empty."""

    def __init__(self, folder: Path, stack: ExitStack, glue: Callable[[], str]) -> None:
        self._folder, self._stack, self._glue = folder, stack, glue
        self.rest: RestCatalog | None = None

    def open(self, kind: str) -> Catalog:
        if kind == "sql":
            return load_catalog("lake", type="sql", uri=f"sqlite:///{self._folder / 'entries.db'}")
        if kind == "glue":
            endpoint, access = self._glue(), {"glue.access-key-id": "tests", "glue.secret-access-key": "tests"}
            catalog = load_catalog(
                "lake", type="glue", **{"glue.endpoint": endpoint, "glue.region": "us-east-1"}, **access
            )
            for namespace in catalog.list_namespaces():
                for table in catalog.list_tables(namespace):
                    catalog.drop_table(table)
                catalog.drop_namespace(namespace)
            return catalog
        self.rest = self._stack.enter_context(rest_catalog(replaces=kind == "rest"))
        return load_catalog("lake", type="rest", uri=self.rest.uri)


@pytest.fixture
def catalogs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Catalogs]:
    with ExitStack() as stack:
        yield Catalogs(tmp_path, stack, lambda: str(request.getfixturevalue("glue_endpoint")))


class Lake:
    """An app in a folder, and an Iceberg root from which each export registers its tables."""

    def __init__(self, folder: Path, cache: SstCache, catalog: Catalog, namespace: str = "") -> None:
        self.folder, self.catalog = folder / "the lake", catalog
        self.store, self.cache = open_store(str(folder / "store")), cache
        self.app = FlightsApp(self.store, Kafka())
        self.app.run(flights(20))
        target = open_store(str(self.folder))
        entries = CatalogNamespace(catalog, namespace)
        self.export = IcebergExport(self.store, cache, target, "ada@host", catalog=entries)

    def write(self, ref: str = "flights") -> dict[str, WrittenTable]:
        now_ms = self.app.clock.now_ms
        return {table.name: table for table in self.export.write(resolve(self.store, ref, now_ms=now_ms), now_ms)}

    def read(self, name: str, namespace: str = "flights") -> list[dict[str, object]]:
        return rows(self.catalog.load_table(f"{namespace}.{name}"))  # type: ignore[arg-type]

    def queried(self, name: str, ref: str = "flights") -> list[dict[str, object]]:
        manifest = resolve(self.store, ref, now_ms=self.app.clock.now_ms).tables[name]
        with duckdb.connect() as con:
            duckdb_view.register_table(con, "t", self.store, self.cache, manifest)
            return list(con.sql("FROM t ORDER BY 1").to_arrow_table().to_pylist())

    def newest(self, name: str) -> str:
        table = IcebergTable(open_store(str(self.folder)), name)
        head = table.head()
        assert head is not None
        return table.metadata_location(head)


@pytest.mark.parametrize("kind", KINDS)
def test_entries_follow_each_export(kind: str, catalogs: Catalogs, cache: SstCache, tmp_path: Path) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    for ref in ("flights", "flights@~3", "flights", "flights"):
        done = lake.write(ref)
        for name in ("aircraft", "carriers"):
            assert done[name].registered == f"lake.flights.{name}"
            assert lake.read(name) == lake.queried(name, ref)
            assert lake.catalog.load_table(f"flights.{name}").metadata_location == lake.newest(name)
        if ref != "flights":
            lake.app.run(flights(20, delay=3))
    if catalogs.rest is not None:
        deleted = [line for line in catalogs.rest.requests if "DELETE" in line]
        assert bool(deleted) == (kind != "rest")


def test_no_right_to_create_namespaces_is_needed_for_one_that_exists(
    catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open("rest"), "an.alysts")
    assert catalogs.rest is not None
    catalogs.rest.namespaces.add("an\x1falysts")
    lake.write()
    assert lake.read("carriers", "an.alysts") == lake.queried("carriers")
    assert not any("POST /v1/namespaces " in line for line in catalogs.rest.requests)


def test_an_entry_of_glue_is_changed_and_never_dropped(catalogs: Catalogs, cache: SstCache, tmp_path: Path) -> None:
    catalog = catalogs.open("glue")
    assert isinstance(catalog, GlueCatalog)
    lake = Lake(tmp_path, cache, catalog)
    for version in ("1", "2", "3"):
        lake.write()
        entry = catalog._get_glue_table("flights", "carriers")
        assert entry["VersionId"] == version
        assert lake.read("carriers") == lake.queried("carriers")
        lake.app.run(flights(10))


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_of_another_table_is_left_alone(
    kind: str, catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    lake.write()
    (tmp_path / "other").mkdir()
    other = Lake(tmp_path / "other", cache, lake.catalog)
    expected = lake.read("carriers")
    with pytest.raises(Refused, match=r"lake\.flights\.aircraft is another table: its location is file://") as caught:
        other.write()
    assert caught.value.hint == "choose another namespace: --register lake.NAMESPACE"
    assert lake.read("carriers") == expected
    (tmp_path / "third").mkdir()
    elsewhere = Lake(tmp_path / "third", cache, lake.catalog, "others")
    elsewhere.write()
    assert elsewhere.read("carriers", "others") == elsewhere.queried("carriers")


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_does_not_go_back_to_an_earlier_export(
    kind: str, catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    lake.write()
    table = IcebergTable(open_store(str(lake.folder)), "carriers")
    first = table.head()
    assert first is not None
    lake.app.run(flights(20, delay=3))
    lake.write()
    # An export that committed before the last one and registers after it.
    assert lake.export.catalog is not None
    lake.export.catalog.register("flights", "carriers", table.metadata_location(first), first.metadata)
    assert lake.read("carriers") == lake.queried("carriers")


@pytest.mark.parametrize("kind", ["sql", "rest-without-overwrite"])
def test_an_entry_that_was_dropped_is_created_again(
    kind: str, catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    lake.write()
    lake.catalog.drop_table("flights.carriers")
    with pytest.raises(NoSuchTableError):
        lake.read("carriers")
    lake.write()
    assert lake.read("carriers") == lake.queried("carriers")


class Beside:
    """A catalog that simulates another export: right after the first read of an entry, `change` runs once."""

    def __init__(self, catalog: Catalog, change: Callable[[], object]) -> None:
        self._catalog, self._changes = catalog, [change]

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    def load_table(self, identifier: str) -> object:
        try:
            return self._catalog.load_table(identifier)
        finally:
            if self._changes:
                self._changes.pop()()


@pytest.mark.parametrize("kind", ["sql", "rest", pytest.param("rest-without-overwrite", marks=pytest.mark.ci)])
@pytest.mark.parametrize("is_first", [True, False])
def test_exports_side_by_side_leave_the_newest_entries(
    kind: str, is_first: bool, catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    if not is_first:
        lake.write()
        lake.app.run(flights(20, delay=3))
    other = IcebergExport(
        lake.store, cache, open_store(str(lake.folder)), "bob@host", catalog=CatalogNamespace(lake.catalog)
    )

    def export_more() -> None:
        lake.app.run(flights(10, delay=7))
        now_ms = lake.app.clock.now_ms
        other.write(resolve(lake.store, "flights", now_ms=now_ms), now_ms)

    lake.export.catalog = CatalogNamespace(Beside(lake.catalog, export_more))  # type: ignore[arg-type]
    lake.write()
    for name in ("aircraft", "carriers"):
        assert lake.read(name) == lake.queried(name)
        assert lake.catalog.load_table(f"flights.{name}").metadata_location == lake.newest(name)


def test_an_entry_of_glue_that_changed_since_it_was_read_is_compared_again(
    catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open("glue"))
    table, heads = IcebergTable(open_store(str(lake.folder)), "carriers"), []
    for _ in range(3):
        lake.app.run(flights(10))
        lake.export.catalog = None if heads else CatalogNamespace(lake.catalog)
        lake.write()
        head = table.head()
        assert head is not None
        heads.append((table.metadata_location(head), head.metadata))
    entries = CatalogNamespace(lake.catalog)
    beside = Beside(lake.catalog, lambda: entries.register("flights", "carriers", *heads[2]))
    beside.__class__ = type("GlueCatalog", (Beside,), {})
    CatalogNamespace(beside).register("flights", "carriers", *heads[1])  # type: ignore[arg-type]
    assert lake.catalog.load_table("flights.carriers").metadata_location == heads[2][0]


def test_a_refused_entry_stops_neither_other_entries_nor_readers_of_its_own(
    catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open("sql"))
    lake.write()
    pins = lake.export.pins("flights")
    (tmp_path / "other").mkdir()
    other = Lake(tmp_path / "other", cache, lake.catalog, "others")
    other.write()
    lake.catalog.drop_table("flights.aircraft")
    lake.catalog.register_table("flights.aircraft", other.newest("aircraft"))
    lake.app.run(flights(20, delay=3))
    later_ms = lake.app.clock.now_ms + 2 * HOUR_MS
    with pytest.raises(Refused, match=r"lake\.flights\.aircraft is another table"):
        lake.export.write(resolve(lake.store, "flights", now_ms=later_ms), later_ms)
    assert lake.read("carriers") == lake.queried("carriers")
    assert set(pins) < set(lake.export.pins("flights"))


def configure(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@pytest.mark.parametrize(
    "properties",
    [
        {"URI": "postgres://bob:hush@db/cat"},
        {"URI": "postgres://bob:a hush@db/cat"},
        {"URI": "postgres://db/cat?password=hush"},
        {"URI": "http://bob:hush@127.0.0.1:1/"},
        {"URI": "http://bob:hu/hush:0@host:x/"},
        {"URI": "http://bob:hush/hush@host:x/"},
        {"URI": "http://127.0.0.1:1", "CREDENTIAL": "bob:hush"},
        {"TYPE": "hush", "TOKEN": "hush"},
        {"TYPE": "hush", "CREDENTIAL": "bob:hush"},
        {"TYPE": "sql", "URI": "sqlite+absent://bob:hush@db/cat"},
    ],
)
def test_no_error_of_a_catalog_reveals_a_secret(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, **properties)
    with pytest.raises((Refused, Unavailable)) as caught:
        CatalogNamespace.open("lake")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("is_token_server", [False, True])
def test_a_catalog_that_is_silent_does_not_hold_up_an_export(
    is_token_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.operations.exchange.iceberg.catalog._TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"http://127.0.0.1:{server.getsockname()[1]}"
        oauth = {"CREDENTIAL": "bob:hush", "OAUTH2-SERVER-URI": f"{silent}/tokens"} if is_token_server else {}
        configure(monkeypatch, URI=silent, **oauth)
        with pytest.raises(Unavailable, match="the Iceberg catalog 'lake' does not answer: ReadTimeout"):
            CatalogNamespace.open("lake")


def age(folder: Path, seconds: float) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            written = file.stat().st_mtime - seconds
            os.utime(file, (written, written))


def test_metadata_that_an_entry_names_stays_while_the_catalog_does_not_answer(
    catalogs: Catalogs, cache: SstCache, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, cache, catalogs.open("sql"))
    lake.write()
    expected, first = lake.read("carriers"), Path(lake.newest("carriers").removeprefix("file://"))
    with rest_catalog(replaces=True) as server:
        away = load_catalog("away", type="rest", uri=server.uri)
    entries, lake.export.catalog = lake.export.catalog, CatalogNamespace(away)
    for _ in range(2):
        age(lake.folder, 7_200)
        lake.app.run(flights(10))
        with pytest.raises(Unavailable, match=r"the Iceberg catalog 'away' does not answer: ConnectionError") as caught:
            lake.write()
        assert "PYICEBERG_CATALOG__AWAY__URI" in caught.value.hint
        # The tables are exported, and readers of the first catalog still have what they had.
        assert lake.read("carriers") == expected
    lake.export.catalog = entries
    lake.write()
    assert lake.read("carriers") == lake.queried("carriers")
    assert not first.exists()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_an_entry_without_metadata_is_explained(kind: str, catalogs: Catalogs, cache: SstCache, tmp_path: Path) -> None:
    lake = Lake(tmp_path, cache, catalogs.open(kind))
    lake.write()
    lake.app.run(flights(10))
    lake.write()
    shutil.rmtree(lake.folder)
    with pytest.raises(Refused, match="names metadata that no longer exists") as caught:
        lake.write()
    assert caught.value.hint == "pyiceberg --catalog lake drop table flights.aircraft"
    for name in ("aircraft", "carriers"):
        lake.catalog.drop_table(f"flights.{name}")
    lake.write()
    assert lake.read("carriers") == lake.queried("carriers")


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("", Usage, "--register '': expected CATALOG or CATALOG.NAMESPACE"),
        (".flights", Usage, "expected CATALOG or CATALOG.NAMESPACE"),
        ("lake.", Usage, "expected CATALOG or CATALOG.NAMESPACE"),
        ("a b", Usage, "expected CATALOG or CATALOG.NAMESPACE"),
        ("absent.flights", Refused, "the Iceberg catalog 'absent' cannot be used: "),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_explained(name: str, kind: type[SlackwaterError], sentence: str) -> None:
    with pytest.raises(kind) as caught:
        CatalogNamespace.open(name)
    assert sentence in caught.value.message
    assert caught.value.hint
