"""Limits of stored objects are checked when they are read: the error names the object, the field and the value."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.errors import Corruption, Refused, Unstorable, Usage
from slackwater.snapshot.cut.stored import open_requests, read_snapshot
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, codec, history, horizon, keys, limits
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.keys import check_columns, check_key
from slackwater.store.versions.manifest import Column, Manifest, Policy, Table
from typer.testing import CliRunner

from tests.models.small_store import write_small_store
from tests.support.hostile import sealed, with_value
from tests.support.manifests import manifest as plain

OFFSETS = ("inputs", "by-aircraft", "offsets")
CASES: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "rows of 2^62": (
        ("ssts", "inline", 0, 3),
        2**62,
        "ssts.inline[0].rows is 4611686018427387904; expected a number of rows",
    ),
    "SSTs as before the first release": (
        ("ssts",),
        [{"object": "x", "rows": 5}],
        'ssts is [{"object":"x","rows":5}]; expected entries and leaves: a slackwater from before the first release',
    ),
    "negative rows": (("ssts", "inline", 0, 3), -5, "ssts.inline[0].rows is -5; expected a number of rows"),
    "more rows than bytes": (
        ("ssts", "inline", 1, 3),
        10**6,
        "ssts.inline[1].rows is 1000000; expected at most its bytes",
    ),
    "no partitions": (("table", "partitions"), 0, "table.partitions is 0; expected a number of state partitions"),
    "a billion partitions": (("table", "partitions"), 10**9, "table.partitions is 1000000000; expected"),
    "a root that is none": (
        ("ssts", "folders", 0, 1),
        "gopher://x",
        "ssts.inline[0].root is 'gopher://x'; expected a store root",
    ),
    "a trigger of nothing": (("table", "compaction", "l0_trigger"), 0, "table.compaction.l0_trigger is 0; expected"),
    "a fanout below 0": (("table", "compaction", "fanout"), -1, "table.compaction.fanout is -1; expected a factor"),
    "files of a byte": (
        ("table", "compaction", "target_file_bytes"),
        1,
        "table.compaction.target_file_bytes is 1; expected a number of bytes from 256",
    ),
    "a fanout of 1": (("table", "compaction", "fanout"), 1.0, "table.compaction.fanout is 1.0; expected a factor"),
    "a column of no name": (("table", "key", 0, "name"), "", 'table.key[0].name is ""; expected a column'),
    "a column with NUL": (("table", "key", 0, "name"), "a\0b", 'table.key[0].name is "a\\u0000b"; expected a column'),
    "a column of slackwater's": (("table", "key", 0, "name"), "_HASH", "table.key[0].name is '_HASH'; expected"),
    "two columns of one name": (("table", "values", 0, "name"), "TAIL", "table.values[0].name is 'TAIL'; expected"),
    "a type that is none": (("table", "values", 0, "type"), "blob", "table.values[0].type is 'blob'; expected"),
    "a ratio that is none": (("table", "compaction", "size_ratio"), "NaN", "table.compaction.size_ratio is"),
    "a time in the year 10^6": (("time_ms",), 31_494_784_780_800_000, "time_ms is 31494784780800000; expected milli"),
    "version 0": (("version",), 0, "version is 0; expected a version's number"),
    "epoch 0": (("epoch",), 0, "epoch is 0; expected an epoch"),
    "an offset below 0": ((*OFFSETS, 0), -1, "inputs['by-aircraft'].offsets[0] is -1; expected an offset"),
    "a reset of a channel": (
        ("inputs", "by-aircraft", "resets"),
        [{"version": 1, "starts": [0, 0], "ends": [0, 0]}],
        "inputs['by-aircraft'].resets[0] is (0, 0); expected of a user's topic",
    ),
    "an offset too many": (OFFSETS, [0] * (limits.MAX_KAFKA_PARTITIONS + 1), "inputs['by-aircraft'].offsets is [0,0,"),
    "consumed longer than offsets": (
        ("inputs", "by-aircraft", "consumed"),
        [1, 2, 3],
        "inputs['by-aircraft'].consumed is (1, 2, 3); expected as many numbers as offsets, 2, or none",
    ),
    "a stage that reads itself": (
        ("inputs", "by-aircraft", "upstream"),
        "aircraft",
        "inputs['by-aircraft'].upstream is 'aircraft'; expected another stage than itself",
    ),
    "a key that climbs out": (("ssts", "folders", 0, 0), "../../etc", "ssts.inline[0].object is '../../etc/"),
    "an absolute key": (("ssts", "folders", 0, 0), "/etc", "ssts.inline[0].object is '/etc/"),
    "a key of another stage": (("ssts", "folders", 0, 0), "flights/stages/legs/sst", "ssts.inline[0].object is"),
    "a checksum that climbs out": (
        ("ssts", "inline", 0, 5),
        "../../x",
        'ssts.inline[0].checksum is "../../x"; expected a base64url checksum',
    ),
    "hashes upside down": (
        ("ssts", "inline", 0, 7),
        -(2**63),
        "ssts.inline[0].hash_max is -9223372036854775808; expected",
    ),
    "versions upside down": (("ssts", "inline", 0, 9), 1, "ssts.inline[0].seq_max is 1; expected not below seq_min"),
    "versions to come": (
        ("ssts", "inline", 0, 9),
        10**6,
        "ssts.inline[0].seq_max is 1000000; expected at most the version",
    ),
    "bytes that nothing has": (
        ("ssts", "inline", 0, 4),
        2**60,
        "ssts.inline[0].bytes is 1152921504606846976; expected",
    ),
    "a name of megabytes": (("writer",), "x" * 5_000_000, 'writer is "xxxxxx'),
    "a DDL string that is none": (
        ("outputs", "by-carrier", "schema"),
        "`a` array<",
        "outputs['by-carrier'].schema is '`a` array<'; expected a Spark DDL string",
    ),
    "an app with a name that is none": (("app",), "../x", 'app is "../x"; expected 1 to 63 of a-z'),
    "a snapshot id that is none": (("recorded",), {"../x": 1}, 'a name in recorded is "../x"; expected an id'),
    "recorded in a version to come": (("recorded",), {"s": 10**6}, "recorded['s'] is 1000000; expected at most"),
    "spans that go backward": (
        ("captured",),
        {"s": {"by-aircraft": {"after": 5, "up_to": 4}}},
        "captured['s'] is",
    ),
    "a stage that is there under two names": (("called",), "planes", "called is 'planes'; expected empty, or the"),
    "a name that a stage has and had": (
        ("formerly",),
        [{"stage": "aircraft", "version": 1}],
        "formerly[0].stage is 'aircraft'; expected a name that appears once",
    ),
    "a name up to a version to come": (
        ("formerly",),
        [{"stage": "planes", "version": 10**6}],
        "formerly[0].version is 1000000; expected above 0, at most",
    ),
    "a rewind to itself": (
        ("rewinds",),
        [{"version": 1, "to": 1}],
        "rewinds[0].to is 1; expected less than its version",
    ),
    "rewinds that go backward": (
        ("rewinds",),
        [{"version": 1, "to": 0}] * 2,
        "rewinds[1].version is 1; expected above 1, at most the version",
    ),
    "another name for nothing": (("kind",), "rename", "formerly is (); expected the stage's name before this version"),
    "a thousand names": (("formerly",), [{"stage": f"s{n}", "version": 1} for n in range(1001)], "formerly is [{"),
    "a number for a text": (("stage",), 7, "stage is 7; expected 1 to 63 of a-z"),
    "a text for numbers": (("inputs", "by-aircraft", "rows"), "many", "inputs['by-aircraft'].rows is"),
}


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_store(tmp_path_factory.mktemp("small") / "store")


@pytest.fixture(scope="module")
def head(small_store: Path) -> str:
    manifests = (small_store / "flights/stages/aircraft/manifests").iterdir()
    return max(str(path.relative_to(small_store)) for path in manifests)


@pytest.fixture
def root(small_store: Path, tmp_path: Path, isolated: None) -> Path:
    return Path(shutil.copytree(small_store, tmp_path / "store"))


def tamper(root: Path, key: str, place: tuple[str | int, ...], value: Any) -> None:
    path = root / key
    path.write_bytes(sealed(with_value(json.loads(path.read_bytes()), place, value)))


def test_more_tombstones_than_rows_are_refused_with_the_field(small_store: Path, head: str) -> None:
    manifest = codec.decode((small_store / head).read_bytes(), Manifest, key=head)
    first, *others = manifest.ssts
    hostile = replace(manifest, ssts=(replace(first, tombstones=9999), *others))
    with pytest.raises(Unstorable, match=r"ssts\.inline\[0\]\.tombstones is 9999; expected with others at most"):
        codec.encode(hostile)


@pytest.mark.parametrize("case", CASES)
def test_an_impossible_manifest_is_refused_with_object_and_field(small_store: Path, head: str, case: str) -> None:
    place, value, said = CASES[case]
    hostile = sealed(with_value(json.loads((small_store / head).read_bytes()), place, value))
    with pytest.raises(Corruption) as error:
        codec.decode(hostile, Manifest, key=head)
    assert error.value.object_key == head
    assert f"object '{head}' is not a readable Manifest: {said}" in error.value.message
    assert len(error.value.message) < 500
    assert error.value.message.isprintable()
    assert error.value.hint == "restore the object from a backup or an older object version"


@pytest.mark.parametrize(
    "words", [("compact", "flights"), ("status", "flights"), ("query", "flights", "FROM aircraft")]
)
@pytest.mark.parametrize("case", ["a billion partitions", "no partitions", "a trigger of nothing", "rows of 2^62"])
def test_every_verb_reports_an_impossible_manifest_in_one_sentence_and_at_once(
    root: Path, head: str, case: str, words: tuple[str, ...]
) -> None:
    place, value, said = CASES[case]
    tamper(root, head, place, value)
    began = time.process_time()
    result = CliRunner().invoke(main.app, words, catch_exceptions=False)
    assert time.process_time() - began < 10
    assert result.exit_code == 1
    assert head in result.stderr
    assert said in result.stderr
    assert "bug" not in result.stderr


OTHERS: dict[str, tuple[str, tuple[str | int, ...], Any, Callable[[ObjectStore], object], str]] = {
    "an app under another's key": (
        "flights/app.json",
        ("name",),
        "staging",
        lambda store: apps.read_app(store, "flights"),
        "has the content of another object, 'staging/app.json'",
    ),
    "a snapshot of another name": (
        "flights/snapshots/at-noon.json",
        ("name",),
        "other",
        lambda store: read_snapshot(store, "flights", "at-noon"),
        "has the content of another object, 'flights/snapshots/other.json'",
    ),
    "a snapshot of version 0": (
        "flights/snapshots/at-noon.json",
        ("stages", "legs"),
        0,
        lambda store: read_snapshot(store, "flights", "at-noon"),
        "stages['legs'] is 0; expected a version's number",
    ),
    "captured records elsewhere": (
        "flights/snapshots/before-deploy.json",
        ("channels", 0, "objects", 0, "key"),
        "flights/app.json",
        lambda store: read_snapshot(store, "flights", "before-deploy"),
        "channels[0].objects[0].key is 'flights/app.json'; expected a key among the app's captured records",
    ),
    "captured records that end before they begin": (
        "flights/snapshots/before-deploy.json",
        ("channels", 0, "up_to"),
        0,
        lambda store: read_snapshot(store, "flights", "before-deploy"),
        "channels[0].up_to is 0; expected not below after",
    ),
    "a clone of a root that is none": (
        "staging/app.json",
        ("origin", "root"),
        "s3://x/../y",
        lambda store: apps.read_app(store, "staging"),
        "origin.root is 's3://x/../y'; expected a store root",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_limits_of_other_objects_are_checked_too(root: Path, case: str) -> None:
    key, place, value, read, said = OTHERS[case]
    tamper(root, key, place, value)
    with pytest.raises(Corruption) as error:
        read(open_store(str(root)))
    assert error.value.object_key == key
    assert said in error.value.message


def test_a_request_whose_id_is_no_ulid_and_a_boundary_out_of_order_are_refused(root: Path) -> None:
    store = open_store(str(root))
    (asked,) = (info.key for info in store.list(keys.requests("flights")))
    tamper(root, asked, ("id",), "../x")
    with pytest.raises(Corruption, match=r"id is .* expected a ULID"):
        open_requests(store, "flights")
    *_, limit = (info.key for info in store.list(keys.boundaries("flights")))
    kept = json.loads((root / limit).read_bytes())["kept"]
    tamper(root, limit, ("kept", min(kept)), [3, 2])
    with pytest.raises(Corruption, match="expected versions ascending"):
        horizon.newest(store, "flights")


def test_an_object_larger_than_the_limit_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    commit(store, plain(1))
    key = keys.manifest("app", "stage", 1)
    store.put(key, store.get(key) + b" " * limits.MAX_OBJECT_BYTES)
    asked: list[int] = []
    get_range = store.get_range
    monkeypatch.setattr(
        store, "get_range", lambda key, start, length: (asked.append(length), get_range(key, start, length))[1]
    )
    with pytest.raises(Corruption, match="too large; expected at most 64 MiB and 2,097,152 values"):
        history.read_stored(store, "app", "stage", 1)
    assert asked == [limits.MAX_OBJECT_BYTES + 1]


def test_an_object_with_more_values_than_the_limit_is_not_parsed() -> None:
    store = MemoryStore()
    key = keys.manifest("app", "stage", 1)
    store.put(key, sealed({"attempts": [0] * (limits.MAX_OBJECT_VALUES + 2)}))
    with pytest.raises(Corruption, match="too large"):
        history.read_stored(store, "app", "stage", 1)


def test_a_value_that_could_not_be_read_back_is_refused_in_one_sentence_and_not_stored() -> None:
    store = MemoryStore()
    head = msgspec.structs.replace(plain(1), time_ms=253_402_300_799_999)
    commit(store, head)
    after = successor(head, kind="batch", epoch=1, writer="w", by="ada@host", now_ms=0)
    with pytest.raises(Refused, match=r"this Manifest could not be read again: time_ms is 253402300800000; expected"):
        commit(store, after)
    assert history.head(store, "app", "stage") == head


@pytest.mark.parametrize(
    "name", ["", "a\0", "a\n", "\x9b31m", "_hash", "_SEQ", "_expires_at", "file_row_number", "x" * 1025]
)
def test_a_column_that_a_store_would_refuse_is_refused_in_the_program(name: str) -> None:
    with pytest.raises(Usage, match="stage 's'"):
        check_columns("stage 's'", [name])
    head = msgspec.structs.replace(plain(1), table=Table((Column(name, "int64"),), (), 1))
    with pytest.raises(Refused):
        codec.encode(head)


def test_columns_that_differ_only_in_case_are_refused_in_programs_and_stores() -> None:
    with pytest.raises(Usage, match="columns 'delay' and 'Delay' differ only in case"):
        check_columns("stage 's'", ["delay", "Delay"])


@pytest.mark.parametrize("name", ["_key", "_position"])
def test_key_columns_that_resemble_those_of_list_elements_are_refused(name: str) -> None:
    with pytest.raises(Usage, match=f"stage 's': the last of several key columns is called '{name}'"):
        check_key("stage 's'", ["a", name])
    for key in ([name], [name, "a"], ["a", "_a"]):
        check_key("stage 's'", key)


@pytest.mark.parametrize("name", ['a"b', "a'b", "a`b", "Å", "a b", "select", "a;--", "名前", "x" * 1024])
def test_any_other_column_name_is_accepted_in_programs_and_stores(name: str) -> None:
    check_columns("stage 's'", [name])
    head = msgspec.structs.replace(plain(1), table=Table((Column(name, "int64"),), (), 1))
    assert codec.decode(codec.encode(head), Manifest, key="k") == head


def test_all_settings_of_a_program_can_be_stored() -> None:
    largest = Policy(
        "leveled",
        l0_trigger=limits.MAX_MERGE_RUNS,
        size_ratio=limits.MAX_AMPLIFICATION,
        min_merge_width=limits.MAX_MERGE_RUNS,
        max_merge_width=limits.MAX_MERGE_RUNS,
        max_space_amplification=limits.MAX_AMPLIFICATION,
        level_base_bytes=limits.MAX_FILE_BYTES,
        fanout=limits.MAX_FANOUT,
        target_file_bytes=limits.MAX_FILE_BYTES,
    )
    smallest = Policy("leveled", l0_trigger=2, size_ratio=0, max_space_amplification=0, fanout=limits.MIN_FANOUT)
    for policy in (largest, smallest):
        table = Table((Column("k", "int64"),), (), limits.MAX_PARTITIONS, compaction=policy)
        head = msgspec.structs.replace(plain(1), table=table)
        assert codec.decode(codec.encode(head), Manifest, key="k") == head
