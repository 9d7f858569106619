"""A folder that was changed by hand is refused by a sentence, whatever was done to it, and nothing is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, Unstorable
from slackwater.keep.transfer.document import DOCUMENT, Export
from slackwater.keep.transfer.imported import Folder
from slackwater.keep.transfer.parts import AGAIN, _sha256
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec

from tests.keep.transfer.test_transfer import come, leave, running
from tests.support.collecting import keys_of
from tests.support.histories import FlightsApp


@pytest.fixture(scope="module")
def source() -> FlightsApp:
    return running(MemoryStore())


@pytest.fixture(scope="module")
def written(source: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "out"
    leave(source, SstCache(path.parent / "cache", 1 << 30), path)
    return path


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "out"))


PART = "tables/carriers/part-00000.parquet"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def linked(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (lambda folder: flip(folder / PART), rf"{PART} is not what was written: its SHA-256 is "),
    "an internal bit": (
        lambda folder: flip(folder / "internal/carriers/part-00000.parquet"),
        "is not what was written",
    ),
    "a bit in flight": (
        lambda folder: flip(folder / "in-flight/by-carrier/part-00000.parquet"),
        "is not what was writ",
    ),
    "a file less": (lambda folder: (folder / PART).unlink(), f"{PART} is missing"),
    "a folder for a file": (lambda folder: ((folder / PART).unlink(), (folder / PART).mkdir()), "is missing"),
    "a file more": (lambda folder: (folder / "tables/carriers/x.parquet").write_text(""), "it has 'tables/carriers/x"),
    "a link more": (linked, "it has 'more', which export.json does not name"),
    "a shorter file": (lambda folder: (folder / PART).write_bytes(b"PAR1"), "has 4 bytes; expected "),
    "no document": (lambda folder: (folder / DOCUMENT).unlink(), "export.json cannot be read: No such file"),
    "an empty document": (lambda folder: (folder / DOCUMENT).write_text(""), "is not a readable Export"),
    "another word": (
        lambda folder: (folder / DOCUMENT).write_text(
            (folder / DOCUMENT).read_text().replace('"carriers"', '"carrierz"')
        ),
        "is not what was written: its checksum is not",
    ),
    "a later format": (
        lambda folder: (folder / DOCUMENT).write_text(
            (folder / DOCUMENT).read_text().replace('"format":1', '"format":2')
        ),
        "has format 2; this slackwater reads formats up to 1",
    ),
    "indented": (
        lambda folder: (folder / DOCUMENT).write_text(
            json.dumps(json.loads((folder / DOCUMENT).read_text()), indent=1)
        ),
        "is not what was written: it does not begin with a checksum",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_by_hand_is_refused_and_named(change: str, source: FlightsApp, folder: Path) -> None:
    do, words = CHANGES[change]
    do(folder)
    other, topics = MemoryStore(), set(source.kafka.topics)
    for dry_run in (True, False):
        with pytest.raises(Refused, match=words) as refused:
            come(source, folder, store=other, dry_run=dry_run)
        assert refused.value.hint == AGAIN
    assert (keys_of(other), set(source.kafka.topics)) == (set(), topics)


def test_what_is_no_folder_is_not_found(source: FlightsApp, tmp_path: Path) -> None:
    for path in (tmp_path / "none", Path(__file__)):
        with pytest.raises(NotFound, match="no folder named"):
            come(source, path)


def forged(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The document with something else in it, and a right checksum."""
    said = json.loads((folder / DOCUMENT).read_text())
    change(said)
    for name in ("format", "xxh3_128"):
        said.pop(name)
    as_any = msgspec.defstruct("Any", [(name, Any) for name in said])
    data = codec.encode(as_any(**said))
    (folder / DOCUMENT).write_bytes(data)


FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a path upwards": (
        lambda said: said["tables"]["carriers"]["parts"][0]["file"].update(path="../../etc/passwd"),
        r"tables\['carriers'\].parts\[0\].file.path is .*expected the path of a file in the folder",
    ),
    "an absolute path": (
        lambda said: said["tables"]["carriers"]["parts"][0]["internal"].update(path="/etc/passwd"),
        "expected the path of a file in the folder",
    ),
    "a name upwards": (lambda said: said.update(app="../flights"), "app is .*expected 1 to 63 of a-z"),
    "a table of another name": (
        lambda said: said["tables"].update(other=said["tables"].pop("carriers")),
        "tables is .*expected those of the stages: aircraft, carriers",
    ),
    "a part of another table": (
        lambda said: said["tables"]["carriers"].update(parts=said["tables"]["aircraft"]["parts"]),
        "expected a file in tables/carriers",
    ),
    "more rows": (lambda said: said["tables"]["carriers"].update(rows=99), r"tables\['carriers'\].rows is 99"),
    "another partition": (
        lambda said: said["tables"]["aircraft"]["parts"][0].update(partition=1),
        "has rows of other state partitions than 1",
    ),
    "an offset below 0": (
        lambda said: said["stages"]["legs"]["inputs"]["flights"].update(offsets=[-1, 0]),
        "expected an offset, from 0",
    ),
    "a stage of another app": (lambda said: said["stages"]["legs"].update(app="other"), "expected flights/legs"),
    "a channel that nobody writes": (
        lambda said: said["in_flight"][0].update(channel="by-nothing"),
        r"in_flight\[0\] is .*expected a channel of the stages, once",
    ),
    "other counts": (lambda said: said["in_flight"][0].update(counts=[1, 2]), "expected as many as its files have"),
    "counts the other way round": (
        lambda said: said["in_flight"][0]["counts"].reverse(),
        "its records in flight are .* by partition; expected",
    ),
    "a reader that read more than was sent": (
        lambda said: said["stages"]["carriers"]["inputs"]["by-carrier"].update(version=99),
        "is not a consistent cut",
    ),
}


@pytest.mark.parametrize("change", FORGED)
def test_a_document_that_is_forged_says_nothing_that_is_believed(change: str, source: FlightsApp, folder: Path) -> None:
    do, words = FORGED[change]
    forged(folder, do)
    with pytest.raises(Refused, match=words):
        come(source, folder, f"forged-{[*FORGED].index(change)}", MemoryStore())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"carrier": ["C0", "C0"], "flights": [1, 2], "delay": [1, 2]}, "have the key of another row"),
        ({"carrier": ["C0"], "flights": [1]}, "other rows than table 'carriers' can have"),
        ({"carrier": [5], "flights": [1], "delay": [1]}, "it has carrier int64, .* expected carrier string"),
    ],
)
def test_rows_that_the_table_cannot_have_are_refused(
    rows: dict[str, list[object]], words: str, source: FlightsApp, folder: Path
) -> None:
    """Whoever forges a file and its checksum gets a sentence, too."""
    said, number = Folder.open(folder).export, len(rows["carrier"])
    part = said.tables["carriers"].parts[0]
    internal = {"_squares": [0] * number, "_seq": [1] * number, "_prev_seq": [0] * number}
    files = []
    for file, columns in ((part.file, rows), (part.internal, internal)):
        path = folder / file.path
        pq.write_table(pa.table(columns), path)
        files.append(replace(file, rows=number, bytes=path.stat().st_size, sha256=_sha256(path)))
    table = replace(
        said.tables["carriers"],
        parts=(replace(part, file=files[0], internal=files[1]), *said.tables["carriers"].parts[1:]),
        rows=number + sum(each.file.rows for each in said.tables["carriers"].parts[1:]),
    )
    (folder / DOCUMENT).write_bytes(codec.encode(replace(said, tables=said.tables | {"carriers": table})))
    other = MemoryStore()
    with pytest.raises(Refused, match=words):
        come(source, folder, f"forged-{len(words)}", other)
    assert not apps.list_apps(other)


def test_what_could_not_be_read_again_is_not_written(written: Path) -> None:
    said: Export = Folder.open(written).export
    with pytest.raises(Unstorable, match="expected those of the stages"):
        codec.encode(replace(said, tables={}))
