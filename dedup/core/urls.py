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
_BETWEEN_URLS: Final = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_BEFORE_PARAMETERS: Final = re.compile("[?&]")
_BETWEEN_PARAMETERS: Final = re.compile("([&#])")
_SECRET_NAME: Final = re.compile("(?i)pass|secret|token|ssl_options")


def split_urls(urls: str | Iterable[str]) -> list[str]:
    """
    Return the single URLs of a comma-separated text or of a list of such texts, in order.
    """
    texts = [urls] if isinstance(urls, str) else urls
    pieces = (piece.strip() for text in texts for piece in _BETWEEN_URLS.split(text.strip().rstrip(",")))
    return [url for url in pieces if url]


def mask_url(urls: str) -> str:
    """
    Return a URL, or a comma-separated list of them, without passwords: fit for logs, errors and reprs.

    Total, in a time that grows with the text and no faster, and careful with text that is no valid URL: where it cannot tell,
    it hides more than the password.
    """
    return ", ".join(_without_secret_parameters(_without_password(url)) for url in split_urls(urls))


def _without_password(url: str) -> str:
    """
    Hide what is between the first colon behind the scheme and the last "@" there is.

    A password may have a raw "@" in it, and password or user a "/", "?" or "#", which ends the user part for other readers.
    """
    scheme, mark, _ = url.partition("://")
    colon = url.find(":", len(scheme + mark) if mark else 0)
    end = url.rfind("@")
    return f"{url[: colon + 1]}{_MASK}{url[end:]}" if 0 <= colon < end else url


def _without_secret_parameters(url: str) -> str:
    """
    Hide the value of each parameter whose name, or whatever was taken for one, speaks of a secret.
    """
    begins = _BEFORE_PARAMETERS.search(url)
    if begins is None:
        return url
    path, query = url[: begins.end()], url[begins.end() :]
    return path + "".join(map(_without_secret, _BETWEEN_PARAMETERS.split(query)))


def _without_secret(parameter: str) -> str:
    named = _SECRET_NAME.search(parameter)
    equals = parameter.find("=", named.end()) if named else -1
    return parameter if equals < 0 else parameter[: equals + 1] + _MASK


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
