"""Moto's server with a lock around puts.

Without the lock, moto checks a key and then writes, so that two conditional puts may both succeed.
"""

from threading import Lock

from moto import server
from moto.s3.responses import S3Response

_put = S3Response.put_object
_lock = Lock()


def _one_at_a_time(response: S3Response) -> object:
    with _lock:
        return _put(response)


if __name__ == "__main__":
    S3Response.put_object = _one_at_a_time
    server.main()
