"""Stored objects are read as they were written, and unreadable ones are named."""

import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.store.versions import codec, keys
from slackwater.store.versions.entries.ssts import Sst, Ssts
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Policy, Table

from tests.models.profiles import scaled
from tests.support.hostile import checked, sealed
from tests.support.manifests import APPS, MANIFESTS, manifest


@scaled(50, in_ci=500)
@given(MANIFESTS)
def test_a_manifest_is_decoded_as_it_was_encoded(value: Manifest) -> None:
    assert codec.decode(codec.encode(value), Manifest, key="m") == value


@given(APPS)
def test_an_app_is_decoded_as_it_was_encoded(value: AppInfo) -> None:
    assert codec.decode(codec.encode(value), AppInfo, key="a") == value


@scaled(50, in_ci=500)
@given(MANIFESTS)
def test_the_bytes_are_json_that_begins_with_the_format(value: Manifest) -> None:
    data = codec.encode(value)
    assert data.startswith(b'{"format":%d,' % codec.FORMAT)
    found = json.loads(data)
    assert len(found.pop("xxh3_128")) == 32
    plain = msgspec.json.encode(value, enc_hook=lambda ssts: ssts.inline)
    expected = json.loads(plain)
    for table in (found, *found["side_tables"].values()):
        names = [entry[0] for entry in table.pop("ssts")["inline"]]
        other = (
            expected
            if table is found
            else expected["side_tables"][next(name for name, side in found["side_tables"].items() if side is table)]
        )
        assert names == [re.sub(r".*/|\.parquet$", "", sst["object"]) for sst in other.pop("ssts")]
    assert found == {"format": codec.FORMAT, **expected}


@given(st.dictionaries(st.from_regex("[a-zA-Z0-9]{1,9}", fullmatch=True), st.integers(1, 100)), st.randoms())
def test_equal_values_have_equal_bytes(recorded: dict[str, int], random: Any) -> None:
    shuffled = list(recorded.items())
    random.shuffle(shuffled)
    one, other = (msgspec.structs.replace(manifest(100), recorded=items) for items in (recorded, dict(shuffled)))
    assert codec.encode(one) == codec.encode(other)


@pytest.mark.parametrize(
    "wrong",
    [
        Policy(target_file_bytes=64e6),  # type: ignore[arg-type]
        Policy(max_space_amplification=math.inf),
        Policy(size_ratio=math.nan),
        Policy(l0_trigger=True),
        Policy("tiered"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_could_not_be_decoded_is_not_encoded(wrong: Policy) -> None:
    with pytest.raises(ValueError, match="this Manifest could not be read again"):
        codec.encode(msgspec.structs.replace(manifest(1), table=Table((), (), 1, compaction=wrong)))


def test_a_value_that_would_be_decoded_differently_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="this Manifest would not be read back as the same value"):
        codec.encode(msgspec.structs.replace(manifest(1), formerly=[]))


def test_an_unknown_field_is_ignored() -> None:
    data = sealed({"format": 1, "name": "a", "created_ms": 1, "colour": "red"})
    assert codec.decode(data, AppInfo, key="k") == AppInfo("a", 1)


def test_an_object_without_a_checksum_is_reported() -> None:
    with pytest.raises(Corruption, match=r"'k' .* was changed: it does not begin with a checksum"):
        codec.decode(b'{"format":1,"name":"a","created_ms":1}', AppInfo, key="k")


def test_a_struct_without_fields_is_decoded_as_it_was_encoded() -> None:
    class Empty(msgspec.Struct, frozen=True):
        pass

    assert codec.decode(codec.encode(Empty()), Empty, key="k") == Empty()


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(Corruption) as caught:
        codec.decode(b'{"format":2,"name":["made","of","parts"]}', AppInfo, key="x/app.json")
    assert caught.value.object_key == "x/app.json"
    assert str(caught.value) == "object 'x/app.json' has format 2; this slackwater reads formats up to 1"
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"[1]",
        b"\xff\xfe",
        b'{"name":"a","created_ms":1}',
        b'{"format":"1","name":"a","created_ms":1}',
        b'{"format":0,"name":"a","created_ms":1}',
        sealed({"format": 0, "name": "a", "created_ms": 1}),
        sealed({"format": 1}),
        sealed({"format": 1, "name": "a", "created_ms": "1"}),
        sealed({"format": 1, "name": 7, "created_ms": 1}),
        checked(b',"name":"\xff","created_ms":1}'),
        checked(b',"name":"a","created_ms":1}{'),
        checked(b',"name":"a","created_ms":1,"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_bytes_that_are_no_such_object_are_reported_with_its_name(data: bytes) -> None:
    with pytest.raises(Corruption, match=r"'x/app\.json'") as caught:
        codec.decode(data, AppInfo, key="x/app.json")
    assert caught.value.object_key == "x/app.json"


@scaled(50, in_ci=500)
@given(MANIFESTS, st.data())
def test_a_truncated_manifest_is_reported(value: Manifest, draw: st.DataObject) -> None:
    data = codec.encode(value)
    length = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(Corruption):
        codec.decode(data[:length], Manifest, key="m")


@scaled(50, in_ci=500)
@given(MANIFESTS, st.data())
def test_a_damaged_manifest_is_decoded_or_reported_and_nothing_else(value: Manifest, draw: st.DataObject) -> None:
    data = bytearray(codec.encode(value))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    # Anything else that it raises is a bug.
    with suppress(Corruption):
        assert isinstance(codec.decode(bytes(data), Manifest, key="m"), Manifest)


_AT_ONCE = """
import sys, threading
from typing import Annotated
import msgspec
from slackwater.store.versions import codec

sys.setswitchinterval(1e-6)
for number in range(300):
    part = msgspec.defstruct("Part", [("k", Annotated[int, msgspec.Meta(ge=0)]), ("v", str)], frozen=True)
    made = msgspec.defstruct("Made", [("a", tuple[part, ...]), ("b", dict[str, part])], frozen=True)
    data = codec.encode(msgspec.defstruct("Same", [("a", tuple), ("b", dict)], frozen=True)((), {}))
    together = threading.Barrier(8)
    def read():
        together.wait()
        codec.decode(data, made, key="made.json")
    threads = [threading.Thread(target=read) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
"""


def test_threads_that_decode_a_type_for_the_first_time_do_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_FIRST_READS = """
import sys, threading
from slackwater.store.versions import codec
from slackwater.store.versions.manifest import Manifest
data, ready = sys.stdin.buffer.read(), threading.Barrier(8)
codec.register_type(Manifest)
sys.setswitchinterval(1e-6)
def read():
    ready.wait()
    codec.decode(data, Manifest, key="k")
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_the_first_manifests_of_a_process_may_be_decoded_by_several_threads_at_once() -> None:
    sst = Sst(keys.sst("app", "stage", "0" * 26), 0, 0, 5, 900, "0a" * 16, 1, 9, 1, 1, 8, "ff" * 16, 4)
    table = Table((Column("k", "int64"),), (Column("v", "int64"),), 4)
    data = codec.encode(replace(manifest(3), table=table, ssts=Ssts([sst])))
    for _ in range(4):  # without registration, one in eight crashed
        subprocess.run([sys.executable, "-c", _FIRST_READS], input=data, check=True)
