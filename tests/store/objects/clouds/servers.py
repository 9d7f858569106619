"""Emulators of Azure Blob Storage (Azurite) and Google Cloud Storage (fake-gcs-server) for tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote, urlsplit

from slackwater.pipeline.dev.jvm_server import HOST, choose_port

from tests.programs.go import built
from tests.support.s3_servers import BUCKET, running_server

# Azurite's only account and its key are public: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURE_VERSION = "2021-08-06"


@contextmanager
def azurite(folder: Path) -> Iterator[dict[str, str]]:
    """Run Azurite with an empty container; yield the environment in which obstore finds it."""
    port = choose_port()
    listen = ("--blobHost", HOST, "--blobPort", str(port), "--queuePort", "0", "--tablePort", "0")
    command = [str(built("azurite")), *listen, "--silent", "--skipApiVersionCheck", "--location", str(folder)]
    with running_server(command, folder, port) as endpoint:
        _create_container(endpoint)
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
        }


def _create_container(endpoint: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION}
    signed_headers = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(
        ["PUT", *[""] * 11, *signed_headers, f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}", "restype:container"]
    ).encode()
    digest = hmac.new(base64.b64decode(_ACCOUNT_KEY), text, hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    with closing(HTTPConnection(urlsplit(endpoint).netloc)) as connection:
        connection.request("PUT", f"/{_ACCOUNT}/{BUCKET}?restype=container", headers={**headers, "Content-Length": "0"})
        assert connection.getresponse().status == 201


@contextmanager
def fake_gcs(folder: Path) -> Iterator[dict[str, str]]:
    """Run fake-gcs-server with an empty bucket; yield the environment in which obstore finds it."""
    port = choose_port()
    listen = ("-scheme", "http", "-host", HOST, "-port", str(port), "-public-host", f"{HOST}:{port}")
    command = [str(built("fake-gcs-server")), *listen, "-backend", "memory", "-log-level", "error"]
    with running_server(command, folder, port) as endpoint, _with_xml_puts(endpoint) as proxy:
        with closing(HTTPConnection(urlsplit(endpoint).netloc)) as connection:
            body = json.dumps({"name": BUCKET})
            connection.request("POST", "/storage/v1/b?project=p", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
        account = {"gcs_base_url": proxy, "disable_oauth": True, "client_email": "", "private_key": ""}
        yield {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | {"private_key_id": ""})}


@contextmanager
def _with_xml_puts(endpoint: str) -> Iterator[str]:
    """Run a proxy for fake-gcs-server that sends PUTs of the XML API, which the server lacks, to its JSON API."""
    netloc = urlsplit(endpoint).netloc

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            bucket, _, key = unquote(urlsplit(self.path).path[1:]).partition("/")
            upload = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
                upload += f"&ifGenerationMatch={generation}"
            self._forward("POST", upload)

        def do_GET(self) -> None:
            self._forward(self.command, self.path)

        do_DELETE = do_HEAD = do_GET  # noqa: N815  names of http.server

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

        def _forward(self, method: str, path: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() in ("content-type", "range")}
            with closing(HTTPConnection(netloc)) as connection:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "etag"):
                    self.send_header(name, value)
            self.send_header("ETag", answer.getheader("ETag") or '"0"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if method != "HEAD":
                self.wfile.write(data)

    with ThreadingHTTPServer((HOST, 0), Proxy) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
