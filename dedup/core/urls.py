"""Take lists of server URLs apart, and take the secrets out before anybody reads one."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

_MASK: Final = "***"
#: Schemes that send passwords and messages as they are.
_PLAIN: Final = frozenset({"amqp", "redis", "http"})
#: A comma is legal inside a URL (a query may hold a list): only one before another scheme ends a URL.
_BETWEEN_URLS: Final = re.compile(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
#: Up to the last "@" there is: a password may have a raw one in it, or a "/", "?" or "#", which ends the user part.
_PASSWORD: Final = re.compile(r"(?s)(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^:@/?#]*:).*@")
_SECRET_PARAMETER: Final = re.compile(
    r"(?i)(?<=[?&])(?P<name>[^=&#]*(?:pass|secret|token|ssl_options)[^=&#]*)=[^&#]*"
)


def split_urls(urls: str | Iterable[str]) -> list[str]:
    """
    Return the single URLs of a comma-separated text or of a list of such texts, in order.
    """
    texts = [urls] if isinstance(urls, str) else urls
    return [url for text in texts for url in _BETWEEN_URLS.split(text.strip().rstrip(",").rstrip()) if url]


def mask_url(urls: str) -> str:
    """
    Return a URL, or a comma-separated list of them, without passwords: fit for logs, errors and reprs.

    Total, and careful with text that is no valid URL: where it cannot tell, it hides more than the password.
    """
    masked = [_PASSWORD.sub(rf"\g<before>{_MASK}@", url) for url in split_urls(urls)]
    return ", ".join(_SECRET_PARAMETER.sub(rf"\g<name>={_MASK}", url) for url in masked)


def readable_on_the_way(urls: str | Iterable[str]) -> list[str]:
    """
    Return those *urls*, masked, that lead to another machine without TLS.

    Loopback is ``localhost``, whatever is below it, and the addresses of loopback; a URL that cannot be read is left out.
    """
    found = []
    for url in split_urls(urls):
        try:
            parts = urlsplit(url)
            # A host that is left out is localhost.
            host = parts.hostname or "localhost"
        except ValueError:
            continue
        if parts.scheme in _PLAIN and not _is_loopback(host):
            found.append(mask_url(url))
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
