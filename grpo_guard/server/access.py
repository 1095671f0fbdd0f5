"""Access control: which requests are answered."""

import base64
import hmac
import ipaddress
from collections.abc import Mapping

from grpo_guard.server.replies import RequestError


def check_access(headers: Mapping[str, str], token: str | None) -> None:
    """Refuse requests from web pages with a RequestError 403, and requests without the token with a
    401. The token follows ``Bearer`` or is the ``Basic`` password: trainers have no option to set
    headers, and many clients accept ``http://any:TOKEN@host``."""
    # Browsers let any page post to 127.0.0.1, and name the page in Origin. A page that the
    # operator happens to visit must not feed the ledger.
    if "origin" in headers:
        raise RequestError(403, "requests from web pages are not answered")
    if token is None:
        return
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    given = secret.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        given = _password(given)
    elif scheme.lower() != "bearer":
        given = b""
    # In constant time: how long a refusal takes must not reveal how much of a guess was right.
    if not hmac.compare_digest(given, token.encode("utf-8")):
        raise RequestError(401, "expected Authorization: Bearer TOKEN")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except ValueError:
        return b""
