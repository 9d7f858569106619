"""Detection of damaged checkpoint files. Errors of Spark's readers do not name the file.

Hadoop keeps checksums beside files on a local disk, which Spark checks there but not in a copy.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from .state_files import damaged, state_file

_MAGIC = b"crc\0"


def check_sum(copy: Path, source: Path, key: str) -> None:
    """Raise `Corruption` if a copy does not match the checksums in `.NAME.crc` beside its source.

    The file has a CRC-32 of each block. Without such a file nothing is checked.
    """
    try:
        sums = source.with_name(f".{source.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    (block_bytes,) = struct.unpack(">I", sums[4:8].rjust(4, b"\0"))
    if sums[:4] != _MAGIC or not block_bytes:
        return
    with copy.open("rb") as file:
        checksums = [zlib.crc32(block).to_bytes(4, "big") for block in iter(lambda: file.read(block_bytes), b"")]
    if b"".join(checksums) != sums[8:]:
        raise damaged(key, "its checksum differs")


def check_all(folder: Path, unpack: Callable[[Path, int], object]) -> None:
    """Raise `Corruption` for the first state file in a folder that cannot be unpacked.

    `unpack` gets a file and its batch; any error of it counts.
    """
    files = ((file, path) for path in folder.glob("state/**/*") if (file := state_file(str(path.relative_to(folder)))))
    for file, path in sorted(files, key=lambda entry: (entry[0].version, entry[0].key)):
        try:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as packed:
                    if (name := packed.testzip()) is not None:
                        raise ValueError(f"{name} in it has another checksum")
            else:
                unpack(path, file.version - 1)
        except Exception as error:  # any error of a codec means that the file is damaged
            raise damaged(file.key, root_of(error)) from error


def root_of(error: BaseException) -> str:
    """Return the root cause of a Python or Java error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    while (cause := java.getCause()) is not None:
        java = cause
    message = str(java.getMessage() or "").strip().partition("\n")[0]
    return message or str(java.getClass().getSimpleName())
