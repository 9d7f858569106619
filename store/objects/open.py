"""Opens object stores by their root: a bucket of S3 (`s3://`), Google (`gs://`) or Azure (`az://`), or a folder."""

import os
import re
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote, urlsplit

from ...common.validation import expand_home
from ...errors import Usage
from .local import LocalStore
from .protocol import UNSUPPORTED_CHARACTERS, ObjectStore
from .s3_settings import HasS3Access, S3Access, S3ClientConfig, S3Settings
from .wrapper import BaseStore

PATIENCE_S = 60.0

simulated_stores: dict[str, Callable[[], ObjectStore]] = {}
"""Functions that open the stores of a simulation in this process, by root."""

_SUPPORTED = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or a local folder"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_WINDOWS = re.compile(r"[A-Za-z]:\\")
_CREDENTIALS = re.compile(r"(?i:s3[an]?|gs|az)://?[^/]*@|[^:]*://?[^/:]*:.*@")
_STORED_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_IN_MEMORY = re.compile(r"memory:[0-9]{1,18}")
_MAX_ROOT = 4096
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REMOTE = re.compile(r"(?:s3|gs|az)://")


def s3_access_for_others(store: ObjectStore) -> S3Access | None:
    """Return the S3 access by which another process can open the store; None without S3 or credentials."""
    return store.access() if isinstance(store, HasS3Access) else None


def use_s3_access(access: S3Access | None) -> S3ClientConfig | None:
    """Sign S3 requests with another process's credentials, even in open stores. Returns the client configuration."""
    if access is None:
        return None
    from .s3_client import use_access as sign_anew

    return sign_anew(access)


def open_store(
    url: str,
    *,
    patience_s: float = PATIENCE_S,
    settings: S3Settings | None = None,
    client_config: S3ClientConfig | None = None,
) -> ObjectStore:
    """Open the store at a root: `s3://…`, `gs://…`, `az://…`, or a local folder as a path or `file://` URL.

    Makes no request and creates nothing. The store's `at` opens other roots with the same settings.

    Args:
        url: the root.
        patience_s: time for which each request to a server is retried while the server does not answer, in seconds.
        settings: settings of S3 requests; None reads them from this process's environment (`load_s3_settings`).
        client_config: result of `use_s3_access`, which includes settings; None uses AWS's environment.

    Raises `Usage` if the root or an S3 setting of the environment is invalid, or the kind of storage is not supported.
    """
    if url in simulated_stores:
        return simulated_stores[url]()
    open_other = partial(open_store, patience_s=patience_s, settings=settings, client_config=client_config)
    scheme = _SCHEME.match(url)
    if scheme is None:
        if _WINDOWS.match(url) and os.name != "nt":
            raise Usage(f"store {url!r} is a Windows path; expected {_SUPPORTED}")
        return _open_folder(url, url, open_other)
    if _CREDENTIALS.match(url):
        # The error does not quote the root, because an invalid root often contains a secret.
        raise Usage(
            f"the store root has credentials before '@': expected {_SUPPORTED}",
            hint="remove them; S3 credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    match scheme[1].lower():
        case "file":
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost"):
                raise Usage(
                    f"store {url!r} names the host {parts.netloc!r}: expected a folder of this machine",
                    hint=f"write file:///{parts.netloc}{parts.path} if that was meant",
                )
            return _open_folder(unquote(parts.path), url, open_other)
        case "s3" | "gs" | "az" as kind:
            bucket, _, prefix = url.split(":", 1)[1].removeprefix("//").partition("/")
            prefix = prefix.strip("/")
            if not _BUCKET.fullmatch(bucket):
                raise Usage(
                    f"store {url!r} has no valid bucket name: expected {kind}://bucket/prefix, found {bucket!r}"
                )
            if not _is_prefix(prefix):
                raise Usage(f"store {url!r} has an empty, '.' or '..' name in its prefix {prefix!r}")
            if kind != "s3":
                from .cloud_store import CloudStore

                return CloudStore(kind, bucket, prefix, patience_s=patience_s)
            # botocore takes a fifth of a second to import, so it is loaded only for S3.
            from .s3_store import S3Store

            return S3Store(bucket, prefix, patience_s=patience_s, settings=settings, client_config=client_config)
        case "s3a" | "s3n":
            raise Usage(f"store {url!r}: expected {_SUPPORTED}", hint=f"write s3:{url.split(':', 1)[1]}")
        case other:
            raise Usage(f"store {url!r}: {other}:// is not supported; expected {_SUPPORTED}")


BaseStore.open_root = staticmethod(open_store)


def check_root(root: str) -> None:
    """Raise `Usage` for an invalid store root in a manifest.

    The empty root is valid: it stands for the manifest's root.
    """
    bucket, _, prefix = _REMOTE.sub("", root, count=1).partition("/")
    if _REMOTE.match(root):
        usable = _STORED_BUCKET.fullmatch(bucket) is not None and _is_prefix(prefix)
    elif root.startswith("/"):
        usable = ".." not in root.split("/")
    else:
        usable = not root or _IN_MEMORY.fullmatch(root) is not None
    if not usable or len(root) > _MAX_ROOT or UNSUPPORTED_CHARACTERS.search(root):
        raise Usage(f"store {root[:80]!r}: expected {_SUPPORTED}")


def _is_prefix(prefix: str) -> bool:
    return not prefix or not any(segment in ("", ".", "..") for segment in prefix.split("/"))


def _open_folder(path: str, url: str, open_other: Callable[[str], ObjectStore]) -> LocalStore:
    if not path.strip() or "\0" in path:
        raise Usage(f"store {url!r} is not usable: expected {_SUPPORTED}")
    folder = expand_home("store", path)
    if folder.exists() and not folder.is_dir():
        raise Usage(f"store {url!r} is a file; expected {_SUPPORTED}")
    return LocalStore(folder, open_other)
