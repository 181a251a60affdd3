"""Take lists of server URLs apart, and take the secrets out before anybody reads one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MASK: Final = "***"
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
