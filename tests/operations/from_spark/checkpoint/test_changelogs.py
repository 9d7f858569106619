"""RocksDB changelogs as Spark writes them, and damaged ones."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.operations.from_spark.checkpoint.changelogs import (
    DELETE,
    MERGE,
    PUT,
    concat_changelogs,
    parse_changelog,
    split_lists,
)
from slackwater.operations.from_spark.checkpoint.unsafe_rows import UnknownLayout

RECORD = st.tuples(
    st.sampled_from([PUT, MERGE, DELETE]), st.integers(0, 3), st.binary(max_size=9), st.binary(max_size=9)
)
Record = tuple[int, int, bytes, bytes]


def changelog(records: list[Record], version: str = "v2") -> bytes:
    """Return the bytes, before compression, that Spark's writer of this version writes."""
    parts = [_text(version), *([_text("3:abc 4:def")] if version == "v4" else [])]
    for kind, family, key, value in records:
        parts.append(struct.pack(">bi", kind, len(key) + 2) + struct.pack("<h", family) + key)
        parts.append(struct.pack(">i", -1) if kind == DELETE else struct.pack(">i", len(value)) + value)
    return b"".join([*parts, b"\0"])


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


@given(st.lists(st.tuples(st.sampled_from(["v2", "v4"]), st.lists(RECORD, max_size=6)), min_size=1, max_size=3))
def test_reading_a_changelog_returns_the_written_records(files: list[tuple[str, list[Record]]]) -> None:
    names = {"default": 0, "a": 1, "b": 2, "c": 3}
    known = {"c": 0}
    read = concat_changelogs(
        parse_changelog(changelog(records, version)).renumbered(names, known) for version, records in files
    )
    expected = [record for _, records in files for record in records]
    data = bytes(read.data)
    back = {number: names[name] for name, number in known.items()}
    found = [
        (kind, back[family], data[key + 2 : key + key_size], data[value : value + size])
        for kind, family, key, key_size, value, size in zip(
            read.kinds, read.families, read.keys, read.key_sizes, read.values, read.value_sizes, strict=True
        )
    ]
    assert found == [(kind, family, key, b"" if kind == DELETE else value) for kind, family, key, value in expected]
    codes = read.key_codes().tolist()
    keys = [(family, key) for _, family, key, _ in expected]
    assert [[a == b for a in codes] for b in codes] == [[a == b for a in keys] for b in keys]


@given(records=st.lists(RECORD, max_size=4), version=st.sampled_from(["v2", "v4"]), data=st.data())
def test_a_truncated_or_damaged_changelog_is_refused_or_reads_as_another(
    records: list[Record], version: str, data: st.DataObject
) -> None:
    """Damaged bytes may be valid by chance. No other error may be raised."""
    whole = changelog(records, version)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(UnknownLayout):
        parse_changelog(whole[:cut])
    damaged = bytearray(whole)
    damaged[cut] = data.draw(st.integers(0, 255))
    with suppress(UnknownLayout):
        split_lists(parse_changelog(bytes(damaged)), 0)


@pytest.mark.parametrize("version", ["v1", "v3", "v5"])
def test_an_unknown_changelog_version_is_left_to_spark(version: str) -> None:
    with pytest.raises(UnknownLayout):
        parse_changelog(changelog([(PUT, 0, b"k", b"v")], version))


@given(st.lists(st.lists(st.binary(min_size=1, max_size=5), max_size=4), min_size=1, max_size=4), st.booleans())
def test_reading_list_elements_returns_the_written_ones(lists: list[list[bytes]], delimited: bool) -> None:
    delimiter = b"," if delimited else b""
    values = [delimiter.join(struct.pack("<i", len(each)) + each for each in some) for some in lists]
    read = parse_changelog(changelog([(MERGE, 1, bytes([number]), value) for number, value in enumerate(values)]))
    owners, starts = split_lists(read, len(delimiter))
    data = bytes(read.data)
    found = [(owner, data[start : start + 1]) for owner, start in zip(owners.tolist(), starts.tolist(), strict=True)]
    assert found == [(number, each[:1]) for number, some in enumerate(lists) for each in some]
