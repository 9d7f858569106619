"""Read access to a checkpoint in a local folder, in S3, or in a Hadoop file system through Spark."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ....errors import ObjectNotFound, Unavailable
from ....store.objects.open import open_store
from ....store.objects.protocol import ObjectInfo

_OWN_SCHEMES = re.compile(r"(s3[an]?|file):", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class ReadableFiles(Protocol):
    """Read-only part of `ObjectStore`. A checkpoint is never changed."""

    @property
    def url(self) -> str: ...

    def get(self, key: str) -> bytes:
        """Return the content of a file. Raises `ObjectNotFound`."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from offset `start`, or fewer at the file's end. Raises `ObjectNotFound`."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the files whose key starts with `prefix`, in any order."""

    def local_path(self, key: str) -> Path | None:
        """Return a file's path on this machine's disk; None for remote storage."""


def open_files(where: str, spark: SparkSession) -> ReadableFiles:
    """Return a reader of a folder, of `s3://bucket/prefix`, or of another URL that Spark supports.

    Raises `Usage` if `where` cannot be parsed, and `Unavailable` if Spark has no such file system.
    """
    return open_without_spark(where) or HadoopFiles(where, spark)


def open_without_spark(where: str) -> ReadableFiles | None:
    """Return a reader that needs no Spark; None if the URL needs Spark. Raises `Usage` for an invalid `where`."""
    if _SCHEME.match(where) and not _OWN_SCHEMES.match(where):
        return None
    return open_store(re.sub(r"^s3[an]:", "s3:", where, flags=re.IGNORECASE))


class HadoopFiles:
    """Reader of the files below a URL, through the JVM of a Spark session."""

    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url = url.rstrip("/")
        self._jvm: Any = spark._jvm
        with self._translate_errors("list", ""):
            conf = spark._jsparkSession.sessionState().newHadoopConf()
            self._files = self._path("").getFileSystem(conf)
            self._root = str(self._files.makeQualified(self._path("")).toString())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._translate_errors("list", prefix):
            try:
                statuses = self._files.listFiles(self._path(prefix[: prefix.rfind("/") + 1]), True)
            except Py4JJavaError as error:
                if _is_absent(error):
                    return
                raise
            while statuses.hasNext():
                status = statuses.next()
                key = str(status.getPath().toString()).removeprefix(self._root).lstrip("/")
                if key.startswith(prefix):
                    yield ObjectInfo(key, status.getLen(), status.getModificationTime())

    def get(self, key: str) -> bytes:
        with self._opened(key) as stream:
            return bytes(stream.readAllBytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._opened(key) as stream:
            stream.skipNBytes(start)
            return bytes(stream.readNBytes(length))

    def local_path(self, key: str) -> Path | None:
        return None

    def _path(self, key: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{key}" if key else self.url)

    @contextmanager
    def _opened(self, key: str) -> Iterator[Any]:
        with self._translate_errors("read", key):
            stream = self._files.open(self._path(key))
            try:
                yield stream
            finally:
                stream.close()

    @contextmanager
    def _translate_errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            if _is_absent(error):
                raise ObjectNotFound(key, self.url) from None
            reason = str(error.java_exception.toString()).partition("\n")[0]
            raise Unavailable(
                f"Spark cannot {verb} {key or 'the checkpoint'!r} at {self.url}: {reason}",
                hint="give this Spark the file system's package and settings: --conf spark.jars.packages=…",
            ) from error


def _is_absent(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()).endswith("FileNotFoundException")
