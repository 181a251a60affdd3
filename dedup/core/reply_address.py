"""
Tell an address that answers may go to, mostly one that RabbitMQ's Direct Reply-To has made, from what somebody has made up.

The broker puts the address of a channel in the place of the bare ``amq.rabbitmq.reply-to``, and passes on whatever else a client
writes. Publishing to such an address is safe for everybody's queues, but a broker may fail over one that it cannot decode, and
closes the connection of whoever published there (541; seen on 3.10 and 4.0, not on 4.3). On 3.10 it still does for one that is well
formed and names no node of the cluster.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Final

#: What the broker looks for; with a dot and the channel's address behind it, it is one.
REPLY_TO: Final = "amq.rabbitmq.reply-to"
#: A process of the broker in Erlang's external term format (131; 88: NEW_PID_EXT): its node, as a short or a long UTF-8 atom,
#: then id, serial and creation, four bytes each.
_PROCESS: Final = re.compile(rb"\x83X(?:w.|v..)reply@\d{1,10}.{12}", re.DOTALL)
_NODE_AT: Final = {ord("w"): 4, ord("v"): 5}
#: Publishers of AMQP 1.0 have their answers sent there where RabbitMQ makes no address for them, before 4.2. Nobody can guess
#: the rest of the name, and no other queue has such a name.
REPLY_QUEUES: Final = "dedup.replies."
_REPLY_QUEUE: Final = re.compile(rb"dedup\.replies\.[0-9a-f]{32}")
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_reply_address(address: bytes) -> bool:
    """
    Say whether *address* is one that the broker has made, as far as that can be seen, or a reply queue of a publisher.
    """
    if _REPLY_QUEUE.fullmatch(address):
        return True
    start = f"{REPLY_TO}.".encode()
    if not address.startswith(start):
        return False
    encoded, _, key = address.removeprefix(start).partition(b".")
    try:
        process = b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    if not (_PROCESS.fullmatch(process) and _KEY.fullmatch(key)):
        return False
    at = _NODE_AT[process[2]]
    return int.from_bytes(process[3:at], "big") == len(process) - at - 12
