"""A server of directory buckets (S3 Express One Zone) for tests: a front of an S3 server with their limits.

Sources of the limits: `CreateSession`, `ListObjectsV2` and `ListMultipartUploads` in Amazon's S3 API reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from random import Random
from threading import Thread
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree as Xml

from tests.support.s3_proxy import S3Proxy, _Handler

DIRECTORY_BUCKET = "slackwater--use1-az4--x-s3"
TOKEN = "a-session-of-tests"
_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
SESSION = f"""<CreateSessionResult xmlns="{_XMLNS}"><Credentials><SessionToken>{TOKEN}</SessionToken>
<SecretAccessKey>tests-secret</SecretAccessKey><AccessKeyId>tests</AccessKeyId>
<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"""
_REFUSED_HEADERS = ("content-md5", "x-amz-server-side-encryption", "x-amz-acl", "x-amz-tagging", "x-amz-storage-class")


class _DirectoryHandler(_Handler):
    def _handle(self) -> None:
        bucket, query = urlsplit(self.path).path.split("/")[1], parse_qs(urlsplit(self.path).query, True)
        if bucket != DIRECTORY_BUCKET:
            super()._handle()
        elif "session" in query:
            self._answer(200, SESSION.encode())
        elif self.headers.get("x-amz-s3session-token") != TOKEN:
            self._refuse(403, "AccessDenied", "no session")
        elif refused := [name for name in _REFUSED_HEADERS if name in self.headers]:
            self._refuse(400, "InvalidRequest", f"not supported: {refused}")
        elif "versionId" in query or "versions" in query:
            self._refuse(501, "NotImplemented", "there are no versions")
        elif ("list-type" in query or "uploads" in query) and self.command == "GET":
            self._list(bucket, query)
        else:
            super()._handle()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - http.server's names

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        """Answer a page of a listing, in an order that is no order of keys but the same for all pages."""
        prefix = query.get("prefix", [""])[0]
        if "start-after" in query or prefix.rstrip("/") == prefix != "" or query.get("delimiter", ["/"]) != ["/"]:
            self._refuse(
                400, "InvalidRequest", "This bucket does not support a prefix that does not end in a delimiter"
            )
            return
        if "uploads" in query:
            super()._handle()
            return
        begin, size = int(query.get("continuation-token", ["0"])[0]), min(int(query.get("max-keys", ["1000"])[0]), 1000)
        entries = list(
            self._all_entries(bucket, {name: query[name] for name in ("prefix", "delimiter") if name in query})
        )
        Random(len(entries)).shuffle(entries)
        page = Xml.Element("ListBucketResult", xmlns=_XMLNS)
        page.extend(entries[begin : begin + size])
        Xml.SubElement(page, "IsTruncated").text = "true" if begin + size < len(entries) else "false"
        Xml.SubElement(page, "NextContinuationToken").text = str(begin + size)
        self._answer(200, Xml.tostring(page))

    def _all_entries(self, bucket: str, query: dict[str, list[str]]) -> Iterator[Xml.Element]:
        token: str | None = ""
        while token is not None:
            words = {name: values[0] for name, values in query.items()} | {"list-type": "2"}
            behind = HTTPConnection(self.server.behind)
            path = f"/{bucket}?{urlencode(words | ({'continuation-token': token} if token else {}))}"
            behind.request("GET", path, headers={"Authorization": self.headers["Authorization"]})
            result = Xml.fromstring(behind.getresponse().read())  # noqa: S314  our own server's
            behind.close()
            for element in result.iter():
                element.tag = element.tag.rpartition("}")[2]
            yield from (*result.findall("Contents"), *result.findall("CommonPrefixes"))
            token = result.findtext("NextContinuationToken")


@contextmanager
def directory_buckets(endpoint: str) -> Iterator[str]:
    """Run the front of an S3 server, with an empty directory bucket; yield its endpoint."""
    import boto3

    with S3Proxy(endpoint) as proxy:
        proxy.RequestHandlerClass = _DirectoryHandler
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            boto3.client("s3", endpoint_url=proxy.endpoint).create_bucket(Bucket=DIRECTORY_BUCKET)
            yield proxy.endpoint
        finally:
            proxy.ended.set()
            proxy.shutdown()
            thread.join()
