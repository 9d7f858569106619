"""A REST catalog that keeps entries in memory: the part of Iceberg's REST specification that registers tables."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from tests.support.json_servers import JsonHandler, JsonServer, serving


class RestCatalog(JsonServer):
    """Server of a catalog. With `replaces` False, it does not know `overwrite`, which is newer in the specification."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__(_Handler)
        self.replaces = replaces
        self.namespaces: set[str] = set()
        self.entries: dict[tuple[str, str], str] = {}
        self.requests: list[str] = []


class _Handler(JsonHandler):
    server: RestCatalog

    def log_message(self, *words: object) -> None:
        self.server.requests.append(str(words[1]))

    def _refuse(self, status: int, kind: str) -> None:
        self.answer(status, {"error": {"message": self.path, "type": kind, "code": status}})

    def _show(self, entry: tuple[str, str]) -> None:
        if entry not in self.server.entries:
            self._refuse(404, "NoSuchTableException")
            return
        location = self.server.entries[entry]
        path = Path(location.removeprefix("file://"))
        if not path.exists():
            self._refuse(404, "NotFoundException")
            return
        self.answer(200, {"metadata-location": location, "metadata": json.loads(path.read_text()), "config": {}})

    @property
    def _words(self) -> list[str]:
        return [unquote(word) for word in self.path.partition("?")[0].split("/")[2:]]

    def do_GET(self) -> None:  # noqa: N802  http.server calls it
        match self._words:
            case ["config"]:
                self.answer(200, {"defaults": {}, "overrides": {}})
            case ["namespaces", namespace, "tables", table]:
                self._show((namespace, table))
            case ["namespaces", namespace] if namespace in self.server.namespaces:
                self.answer(200, {"namespace": namespace.split("\x1f"), "properties": {}})
            case _:
                self._refuse(404, "NoSuchNamespaceException")

    def do_POST(self) -> None:  # noqa: N802  http.server calls it
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match self._words:
            case ["namespaces"]:
                namespace = "\x1f".join(asked["namespace"])
                known = namespace in self.server.namespaces
                self.server.namespaces.add(namespace)
                self._refuse(409, "AlreadyExistsException") if known else self.answer(200, asked)
            case ["namespaces", namespace, "register"]:
                entry = namespace, asked["name"]
                if namespace not in self.server.namespaces:
                    self._refuse(404, "NoSuchNamespaceException")
                elif entry in self.server.entries and not (self.server.replaces and asked.get("overwrite")):
                    self._refuse(409, "AlreadyExistsException")
                else:
                    self.server.entries[entry] = asked["metadata-location"]
                    self._show(entry)

    def do_DELETE(self) -> None:  # noqa: N802  http.server calls it
        match self._words:
            case ["namespaces", namespace, "tables", table]:
                self.server.entries.pop((namespace, table), None)
                self.answer(204)


@contextmanager
def rest_catalog(*, replaces: bool) -> Iterator[RestCatalog]:
    with serving(RestCatalog(replaces=replaces)) as server:
        yield server
