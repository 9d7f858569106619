"""A folder of this process with copies of some of a checkpoint's files, under the same names, for Spark to read.

A query removes old files of its checkpoint at any time. What was copied stays, and a reader that lacks a file fails: so
what is read here is right, or nothing is.
"""

import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...errors import ObjectNotFound
from ...store.objects.protocol import ObjectStore

_AT_A_TIME = 16
_PIECE_BYTES = 16 << 20


def copied(files: ObjectStore, folder: Path, keys: Iterable[str]) -> int:
    """Copy files that are not in the folder yet; how many bytes these have together.

    Raises `ObjectNotFound` where one is not in the checkpoint any more. Some may have been copied then.
    """
    missing = [key for key in dict.fromkeys(keys) if not (folder / key).exists()]
    with ThreadPoolExecutor(_AT_A_TIME, "copy") as pool:
        return sum(pool.map(lambda key: _copy(files, key, folder / key), missing))


def _copy(files: ObjectStore, key: str, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if (source := files.local_path(key)) is not None:
        try:
            shutil.copyfile(source, part)
        except FileNotFoundError:
            raise ObjectNotFound(key, files.url) from None
    else:
        with part.open("wb") as file:
            while len(piece := files.get_range(key, file.tell(), _PIECE_BYTES)) == _PIECE_BYTES:
                file.write(piece)
            file.write(piece)
    # Whole, or not there.
    part.replace(target)
    return target.stat().st_size
