"""Damaged files of a checkpoint, found and named here, since the errors of Spark's readers do not name them.

Where Hadoop keeps sums of a file beside it, as on a local disk, Spark would check them there. A copy has none.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from .state_files import damaged, state_file

_MAGIC = b"crc\0"


def check_sum(copy: Path, source: Path, key: str) -> None:
    """Raise `Corruption` where a copy has other sums than Hadoop put beside its source, in `.NAME.crc`.

    That is CRC-32 of each so many bytes. Without one, nothing is known.
    """
    try:
        sums = source.with_name(f".{source.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    (piece,) = struct.unpack(">I", sums[4:8].rjust(4, b"\0"))
    if sums[:4] != _MAGIC or not piece:
        return
    with copy.open("rb") as file:
        found = [zlib.crc32(some).to_bytes(4, "big") for some in iter(lambda: file.read(piece), b"")]
    if b"".join(found) != sums[8:]:
        raise damaged(key, "its checksum is another")


def check_all(folder: Path, unpack: Callable[[Path, int], object]) -> None:
    """Raise `Corruption` for the first of the state's files in a folder that cannot be unpacked.

    `unpack` gets a file and its batch, and raises what it likes.
    """
    there = ((file, path) for path in folder.glob("state/**/*") if (file := state_file(str(path.relative_to(folder)))))
    for file, path in sorted(there, key=lambda each: (each[0].version, each[0].key)):
        try:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as packed:
                    if (name := packed.testzip()) is not None:
                        raise ValueError(f"{name} in it has another checksum")
            else:
                unpack(path, file.version - 1)
        except Exception as error:  # whatever a codec says, the file is not as Spark wrote it
            raise damaged(file.key, root_of(error)) from error


def root_of(error: BaseException) -> str:
    """The first cause of an error, in Java too, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    while (cause := java.getCause()) is not None:
        java = cause
    said = str(java.getMessage() or "").strip().partition("\n")[0]
    return said or str(java.getClass().getSimpleName())
