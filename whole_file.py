"""Files that are written whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from .errors import Refused


@contextmanager
def whole_file(path: Path, option: str) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place when the block is done.

    Raises `Refused` where it cannot be written; `option` named it.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint=f"choose another {option}") from None


def check_folder(path: Path, option: str) -> None:
    """Raise `Refused` where there is no folder to write to."""
    if not path.parent.is_dir():
        raise Refused(f"{path} cannot be written: no folder {path.parent}", hint=f"make it, or choose another {option}")
