"""Secrets in files, such as those that Kubernetes mounts, which may be replaced while a process runs."""

import socket
import stat
from pathlib import Path

from ..errors import Refused

_MAX_BYTES = 1 << 20


class SecretFile:
    """File with a secret as its only content. A line break at its end is not part of the secret."""

    def __init__(self, path: str, purpose: str, setting: str) -> None:
        """`purpose` (the purpose of the secret) and `setting` (the setting with the path) are named in errors."""
        self._path, self._purpose, self._setting = Path(path), purpose, setting
        self._stamp: tuple[int, int, int] | None = None
        self._secret = ""
        self.unread = ""
        """Sentence that explains why the file's present content is not used; empty if it is used."""

    def read(self) -> str:
        """Return the secret, read again if the file has changed.

        While the file is absent or empty, as during a non-atomic replacement, returns the last secret. Raises `Refused`
        if no secret was ever read.
        """
        try:
            self._read()
            self.unread = ""
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.unread = f"{socket.gethostname()} cannot read {self._purpose} from {self._path}: {reason}"
            if not self._secret:
                raise Refused(
                    self.unread,
                    hint=f"put it into the file that {self._setting} names, on each machine that runs the app",
                ) from None
        return self._secret

    def _read(self) -> None:
        status = self._path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")  # a pipe would block
        # Taken before the read: a change during the read is noticed by the next call.
        stamp = status.st_ino, status.st_mtime_ns, status.st_size
        if stamp == self._stamp:
            return
        with self._path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        try:
            secret = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise ValueError("it is not text") from None  # the original error contains the bytes
        if not secret or len(data) > _MAX_BYTES or "\0" in secret:
            raise ValueError("it is empty" if not secret else "it is too large, or has a zero byte")
        self._stamp, self._secret = stamp, secret
