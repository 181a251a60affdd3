"""Tell systemd how far the service is (sd_notify(3)); without systemd nothing happens."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(*states: str) -> None:
    """
    Send *states*, such as ``READY=1``, where NOTIFY_SOCKET says.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # A manager that is gone must not stop the forwarding.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto("\n".join(states).encode(), address)
