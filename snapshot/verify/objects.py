"""Whether the objects of a cut are there, by their sizes, and whether manifests say of SSTs what can be true."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ...errors import ObjectNotFound
from ...store.objects.protocol import ObjectStore, check_key
from ...store.versions.manifest import Manifest, Sst
from .report import Checked, noted

_PAGE = 1000
"""Keys in one answer of S3 to a listing."""


def check_sizes(store: ObjectStore, expected: Mapping[str, int]) -> Iterator[Checked]:
    """Whether each object is there and has the bytes it should have.

    A listing of their folders while that is cheaper than asking for each by itself: one request for each 1,000 objects
    that lie between the first and the last. Raises only `Unavailable`.
    """
    folders: dict[str, list[str]] = {}
    for key in sorted(expected):
        wrong: list[str] = []
        with noted(wrong):
            check_key(key)
            folders.setdefault(key.rpartition("/")[0] + "/", []).append(key)
        if wrong:
            yield Checked("objects", key, tuple(wrong))
    for folder, names in folders.items():
        found: dict[str, int] = {}
        # A listing begins after the key it is given.
        for info in islice(store.list(folder, names[0][:-1]), _PAGE * len(names)):
            if info.key in expected:
                found[info.key] = info.size_bytes
            if info.key >= names[-1]:
                break
        for key in names:
            fault = _unlike(found[key], expected[key]) if key in found else _asked(store, key, expected[key])
            yield Checked("objects", key, (f"object {key} {fault}",) if fault else ())


def _unlike(found: int, expected: int) -> str:
    return "" if found == expected else f"has {found} bytes; expected {expected}"


def _asked(store: ObjectStore, key: str, expected: int) -> str:
    """As `_unlike`, by reading the last byte and the one that must not follow it."""
    try:
        last = store.get_range(key, max(0, expected - 1), 2)
    except ObjectNotFound:
        return "is missing"
    return "" if len(last) == 1 else f"has {'more' if last else 'fewer'} than {expected} bytes"


def check_entries(manifest: Manifest) -> Checked:
    """What is wrong with what a manifest says of its SSTs."""
    at = f"{manifest.app}/{manifest.stage} v{manifest.version}"
    # What each entry may say by itself, whoever reads the manifest has seen to (`store.versions.checks`).
    # Of two rows of a key the larger `_seq` wins: SSTs in which one key can be must be of different times.
    wrong = [f"{at} has {len(manifest.ssts)} SSTs and no table"] if manifest.ssts and manifest.table is None else []
    wrong += (
        f"{at}: SSTs {one.object} and {other.object} share hashes and versions; expected them to be of different times"
        for one, other in _sharing_hashes(manifest.ssts)
        if one.seq_min <= other.seq_max and other.seq_min <= one.seq_max
    )
    return Checked("objects", at, tuple(wrong), 0)


def _sharing_hashes(ssts: Sequence[Sst]) -> list[tuple[Sst, Sst]]:
    """The pairs whose ranges of hashes meet, in the order of the manifest: few, also where there are many SSTs."""
    pairs: list[tuple[int, int]] = []
    reached: list[int] = []
    for number in sorted(range(len(ssts)), key=lambda number: ssts[number].hash_min):
        reached = [other for other in reached if ssts[other].hash_max >= ssts[number].hash_min]
        pairs += ((min(number, other), max(number, other)) for other in reached)
        reached.append(number)
    return [(ssts[one], ssts[other]) for one, other in sorted(pairs)]
