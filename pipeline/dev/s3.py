"""S3 server for development, the demo and tests: s3proxy on a folder, with one bucket.

s3proxy stores objects as plain files, and has no requirements beyond those of Kafka. It implements `If-None-Match: *`
with link(2), so exactly one of several concurrent writers wins. While an object is being written, a listing also shows
`<key>-<uuid>`; such files left over by a crash are removed at the next start.
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

from .jars import Jars
from .jvm_server import HOST, EmbeddedServer

BUCKET = "slackwater"
ACCESS_KEY = SECRET_KEY = "slackwater"  # noqa: S105  of a server that only this machine reaches
"""Access key and secret key of the server, which accepts no other credentials."""
_ID_BUCKET = "slackwater-dev"
"""Bucket with a single object, whose name identifies the folder's server."""

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
    """S3 server in a folder: `with EmbeddedS3(folder) as bucket:`; `bucket.store_root` is the store root."""

    name: ClassVar[str] = "S3"
    jars: ClassVar[Jars] = Jars("s3proxy 4.1.0", "s3proxy-4.1.0", Path(__file__).with_name("s3-jars.txt"), 31)
    heap: ClassVar[str] = "256m"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    @property
    def store_root(self) -> str:
        return f"s3://{BUCKET}/"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def is_answering(self) -> bool:
        mark_name = self._server_id()
        return (
            bool(mark_name)
            and self._returns(f"/{BUCKET}?list-type=2&max-keys=1", b"<ListBucketResult")
            and (self._returns(f"/{_ID_BUCKET}/{mark_name}", mark_name.encode()))
        )

    def _returns(self, path: str, expected: bytes) -> bool:
        # Version 1 of AWS's signatures needs only these lines; importing boto3 is slow.
        date = formatdate(usegmt=True)
        signed_text = f"GET\n\n\n{date}\n{path.partition('?')[0]}"
        signature = b64encode(hmac.digest(SECRET_KEY.encode(), signed_text.encode(), "sha1")).decode()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Date": date, "Authorization": f"AWS {ACCESS_KEY}:{signature}"})
            answer = connection.getresponse()
            return answer.status == http.HTTPStatus.OK and expected in answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _server_id(self) -> str:
        marks = self.folder / "objects" / _ID_BUCKET
        return next((path.name for path in sorted(marks.glob("*"))), "")

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        settings = self.folder / "server.properties"
        settings.write_text(
            _SETTINGS.format(host=HOST, port=self.port, access_key=ACCESS_KEY, secret_key=SECRET_KEY),
            encoding="ascii",
        )
        objects = self.folder / "objects"
        # s3proxy stores a bucket as a folder.
        for bucket in (BUCKET, _ID_BUCKET):
            (objects / bucket).mkdir(parents=True, exist_ok=True)
        if not self._server_id():
            mark_name = uuid.uuid4().hex
            (objects / _ID_BUCKET / mark_name).write_text(mark_name, encoding="ascii")
        for path in objects.rglob("*-*-*-*-*"):
            if _LEFTOVER.fullmatch(path.name) and path.is_file():
                path.unlink()
        logging = Path(__file__).with_name("s3-logback.xml")
        # Passed as a flag, because the properties file cannot express every path, and a relative path breaks listings.
        flags = (f"-Dlogback.configurationFile={logging}", f"-Djclouds.filesystem.basedir={objects}", "-cp", classpath)
        return (*flags, "org.gaul.s3proxy.Main", "--properties", settings.name)
