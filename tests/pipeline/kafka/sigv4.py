"""AWS's Signature Version 4 of a presigned URL, by its documentation, with nothing but the standard library."""

import hashlib
import hmac
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit


def signed_fields(token: str) -> dict[str, str]:
    """Return the query of a token of MSK."""
    return dict(parse_qsl(urlsplit(_url(token)).query, strict_parsing=True))


def is_of(token: str, access_key: str) -> bool:
    return signed_fields(token)["X-Amz-Credential"].startswith(f"{access_key}/")


def end_of(token: str) -> float:
    """Return the time at which a token of MSK expires, in seconds since 1970."""
    fields = signed_fields(token)
    signed = datetime.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return signed.timestamp() + int(fields["X-Amz-Expires"])


def _url(token: str) -> str:
    assert "=" not in token
    return urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def is_signed(token: str, secret_keys: Mapping[str, str]) -> bool:
    """Return True if a token of MSK is signed with the secret key that belongs to its access key."""
    parts, fields = urlsplit(_url(token)), signed_fields(token)
    user, day, region, service, end = fields["X-Amz-Credential"].split("/")
    assert (service, end, fields["Action"]) == ("kafka-cluster", "aws4_request", "kafka-cluster:Connect")
    assert fields["X-Amz-Date"].startswith(day)
    assert (parts.scheme, parts.netloc, parts.path) == ("https", f"kafka.{region}.amazonaws.com", "/")
    unsigned = ("X-Amz-Signature", "User-Agent")
    query = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in fields.items() if k not in unsigned)
    asked = "&".join(f"{name}={value}" for name, value in query)
    request = f"GET\n/\n{asked}\nhost:{parts.netloc}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    scope = f"{day}/{region}/kafka-cluster/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{scope}\n{hashed}"
    key = f"AWS4{secret_keys.get(user, '')}".encode()
    for part in (*scope.split("/"), signed):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(key.hex(), fields["X-Amz-Signature"])
