"""What is to be forgotten: keys of tables as somebody types them, and as look-ups take them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Usage
from ...moments.query.columns import key_of, parse_keys
from ...store.sst.hashing import hash_keys
from ...store.versions.manifest import Table
from .words import Words

_SHAPE = "TABLE=KEY, with a JSON array for a key of several columns"
_MOST = 1_000_000
"""Keys that are forgotten at once: all of them are in memory."""


@dataclass(frozen=True, slots=True)
class KeysAsked:
    """Keys to be forgotten, as they were typed."""

    tables: Mapping[str, tuple[tuple[object, ...] | str, ...]]
    """By table; text where the number of the key's columns is not known yet."""

    @classmethod
    def of(cls, keys: Iterable[str], files: Iterable[Path] = ()) -> "KeysAsked":
        """From `TABLE=KEY` each, and files with one of these a line. Raises `Usage`."""
        lines = [*keys, *(line for file in files for line in _lines(file))]
        found: dict[str, dict[tuple[object, ...] | str, None]] = {}
        for line in lines:
            table, equals, key = line.partition("=")
            if not (table and equals):
                raise Usage("a key to be forgotten has no table, or no '='", hint=f"expected {_SHAPE}")
            found.setdefault(table, {})[key] = None
        return cls._checked(found)

    @classmethod
    def of_values(cls, keys: Mapping[str, Iterable[object]]) -> "KeysAsked":
        """From Python's own values, by table; a tuple for a key of several columns. Raises `Usage`."""
        return cls._checked(
            {
                table: {each if isinstance(each, tuple | str) else (each,): None for each in some}
                for table, some in keys.items()
            }
        )

    @classmethod
    def _checked(cls, found: Mapping[str, Mapping[tuple[object, ...] | str, None]]) -> "KeysAsked":
        count = sum(map(len, found.values()))
        if not count:
            raise Usage("there is no key to be forgotten", hint=f"--key {_SHAPE}, or --keys FILE with one a line")
        if count > _MOST:
            raise Usage(f"{count:,} keys are more than are forgotten at once", hint=f"at most {_MOST:,}")
        return cls({table: tuple(some) for table, some in found.items()})

    def digest(self, salt: str) -> str:
        """Tells whether somebody asks for the same keys again, to whoever has them and the salt."""
        typed = sorted((table, sorted(map(repr, some))) for table, some in self.tables.items())
        return blake2b(repr(typed).encode(), key=bytes.fromhex(salt), digest_size=32).hexdigest()

    def values(self, name: str, table: Table) -> list[Sequence[object]]:
        """The values of each key of a table. Raises `Usage` where a text is not as many."""
        return [each if isinstance(each, tuple) else key_of(name, table, each) for each in self.tables[name]]


def _lines(file: Path) -> Iterator[str]:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"cannot read {file} as text: {error}") from error
    # Ends of lines have become "\n" by now; a key may have others of those that `splitlines` takes for one.
    return filter(None, text.split("\n"))


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one table, as look-ups take them."""

    names: tuple[str, ...]
    hashes: npt.NDArray[np.int64]
    """Ascending."""
    rows: pa.Table
    """The key columns, in the order of the hashes."""

    @classmethod
    def of(cls, name: str, table: Table, asked: KeysAsked) -> "Keys":
        """Raises `Usage` where a value is not of its column's type."""
        rows = parse_keys(name, table, asked.values(name, table))
        hashes = hash_keys(rows, rows.schema.names)
        order = np.argsort(hashes, kind="stable")
        return cls(tuple(rows.schema.names), hashes[order], rows.take(pa.array(order)).combine_chunks())

    def words(self) -> list[Words]:
        """What is looked for in records, of each key."""
        return [Words.of(row) for row in self.rows.to_pylist()]
