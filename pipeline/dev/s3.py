"""An S3 server for development, the demo and tests: s3proxy on a folder, with one bucket in it.

Chosen because it keeps objects on disk as they are, needs nothing that Kafka does not need, and does `If-None-Match: *`
with link(2), so that of any number of writers exactly one wins. While an object is being written, a listing also shows
`<key>-<uuid>`; what a crash leaves of those goes at the next start.
"""

import hmac
import http
import http.client
import re
import uuid
from base64 import b64encode
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar

from . import ports
from .jars import Jars
from .jvm_server import EmbeddedServer

BUCKET = "slackwater"
ACCESS_KEY = SECRET_KEY = "slackwater"  # noqa: S105  of a server that only this machine reaches
"""The only credentials that the server takes."""
_MARKS = "slackwater-dev"
"""A bucket with one object, which no other folder's server has."""

_SETTINGS = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={access_key}
s3proxy.credential={secret_key}
s3proxy.jetty.max-threads=32
jclouds.provider=filesystem
"""
_LEFTOVER = re.compile(r".+\.[a-z0-9]+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMEOUT_S = 2.0


class EmbeddedS3(EmbeddedServer):
    """`with EmbeddedS3(folder) as bucket:`; in `bucket.environment`, `bucket.store_root` is a store."""

    name: ClassVar[str] = "S3"
    jars: ClassVar[Jars] = Jars("s3proxy 4.1.0", "s3proxy-4.1.0", Path(__file__).with_name("s3-pom.xml"))
    heap: ClassVar[str] = "256m"

    @property
    def endpoint(self) -> str:
        """The URL that S3 clients take as their endpoint."""
        return f"http://{self.address}"

    @property
    def store_root(self) -> str:
        """The store root that is the whole bucket."""
        return f"s3://{BUCKET}/"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which any AWS client reaches this server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def answers(self) -> bool:
        """Whether the bucket can be listed, and the folder's own mark is on the server."""
        mark = self._mark()
        return (
            bool(mark)
            and self._gives(f"/{BUCKET}?list-type=2&max-keys=1", b"<ListBucketResult")
            and (self._gives(f"/{_MARKS}/{mark}", mark.encode()))
        )

    def _gives(self, path: str, expected: bytes) -> bool:
        """Whether the server answers with something that holds these bytes."""
        # Signed as AWS did first, which needs no more than this: boto3 takes long to import.
        date = formatdate(usegmt=True)
        said = f"GET\n\n\n{date}\n{path.partition('?')[0]}"
        signature = b64encode(hmac.digest(SECRET_KEY.encode(), said.encode(), "sha1")).decode()
        connection = http.client.HTTPConnection(ports.HOST, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Date": date, "Authorization": f"AWS {ACCESS_KEY}:{signature}"})
            answer = connection.getresponse()
            return answer.status == http.HTTPStatus.OK and expected in answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _mark(self) -> str:
        """The name of the object by which this folder's server is told from another; empty before the first start."""
        marks = self.folder / "objects" / _MARKS
        return next((path.name for path in sorted(marks.glob("*"))), "")

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        settings = self.folder / "server.properties"
        settings.write_text(
            _SETTINGS.format(host=ports.HOST, port=self.port, access_key=ACCESS_KEY, secret_key=SECRET_KEY),
            encoding="ascii",
        )
        objects = self.folder / "objects"
        # A bucket is a folder.
        for bucket in (BUCKET, _MARKS):
            (objects / bucket).mkdir(parents=True, exist_ok=True)
        if not self._mark():
            mark = uuid.uuid4().hex
            (objects / _MARKS / mark).write_text(mark, encoding="ascii")
        for path in objects.rglob("*-*-*-*-*"):
            if _LEFTOVER.fullmatch(path.name) and path.is_file():
                path.unlink()
        logging = Path(__file__).with_name("s3-logback.xml")
        # The folder is a setting as well, but the file could not say every path; a relative one breaks listings.
        flags = (f"-Dlogback.configurationFile={logging}", f"-Djclouds.filesystem.basedir={objects}", "-cp", classpath)
        return (*flags, "org.gaul.s3proxy.Main", "--properties", settings.name)
