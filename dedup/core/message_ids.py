"""
Remember the ids of messages that carry no stamp, within a time and a count.

A message id stands in the map of publishers like a publisher of its own whose only sequence is 1: its *key*
begins with a character that no publisher id may have. So intents, markers, recovery, doubt and rollback treat it
as what they know. Only the limits differ, and they are here: the oldest ids go first, nothing is ever refused for
want of room, and neither does an id cost a publisher its place nor a publisher an id.

Ids that were forwarded with one batch are kept and forgotten together: to write them down one by one, and to delete them one
by one, costs more than all else that is written of a batch.

What tells the re-entries of a dead letter (returns.py) is remembered here too, under keys that are nobody's id.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dedup.core.identity import validate_publisher_id
from dedup.core.window import Verdict
from dedup.errors import InvalidIdentityError

#: Ids remembered of one queue at the most.
MESSAGE_IDS_MAX: Final = 100_000
#: How long an id is remembered; seconds.
MESSAGE_ID_KEEP_S: Final = 600.0

#: First character of a key: DEL, a control character, so that no publisher id begins with it.
KEY_PREFIX: Final = "\x7f"
#: The only sequence of a key.
KEY_SEQUENCE: Final = 1
#: An id of more UTF-8 bytes than this is known by its digest; it bounds what one costs.
PLAIN_BYTES_MAX: Final = 64
#: How a digest is shown to people.
_DIGEST_SHOWN: Final = "sha-256:"
#: Ids forgotten with one batch beyond the number it brought; the last batch of them goes whole.
_FORGET_MAX: Final = 500


def message_key(text: bytes, *, kind: bytes = b"") -> str:
    """
    Return the key of a message id.

    Short plain text is its own key; anything else is known by its SHA-256, so no two ids share a key.

    Args:
        text: The id, not empty: its characters, or for another type its canonical bytes.
        kind: What sort of value it is; empty for text. The same bytes of another kind are another id.
    """
    if not kind and len(text) <= PLAIN_BYTES_MAX:
        try:
            plain = text.decode()
        except UnicodeDecodeError:
            plain = ""
        if plain and (plain.isprintable() or not _has_control(plain)):
            return KEY_PREFIX + plain
    digest = hashlib.sha256(b"%d %b %b" % (len(kind), kind, text)).digest()
    return 2 * KEY_PREFIX + urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_message_key(name: str) -> bool:
    """
    Say whether *name* is the key of a message id and not a publisher id.
    """
    return name.startswith(KEY_PREFIX)


def message_id(key: str) -> str:
    """
    Return the id behind *key* as people read it.
    """
    plain = key.removeprefix(KEY_PREFIX)
    return _DIGEST_SHOWN + plain[1:] if plain.startswith(KEY_PREFIX) else plain


def validate_name(value: object) -> str:
    """
    Return *value* when it is a publisher id or the key of a message id: what the map of publishers holds.

    Raises:
        InvalidIdentityError: it is neither.
    """
    if isinstance(value, str) and is_message_key(value):
        plain = value.lstrip(KEY_PREFIX)
        if len(value) - len(plain) > 2 or len(plain.encode(errors="replace")) > PLAIN_BYTES_MAX:
            raise InvalidIdentityError("a key of a message id is longer or holds more than any that is made")
        validate_publisher_id(plain)
        return value
    return validate_publisher_id(value)


class Together(NamedTuple):
    """
    With what a message was forwarded, the same for all of its batch.
    """

    #: Number of the batch.
    batch: int
    #: When that was; unix seconds.
    at_s: float


_NEVER: Final = Together(0, 0.0)


class MessageIds:
    """
    The message ids that were forwarded, oldest batch first, with those of one batch kept apart until it is.

    An id counts from when it was forwarded; a copy of it makes it no younger.

    Args:
        entries: Key -> with what it was forwarded.
        count_max: Ids remembered at the most; the oldest batches go first, the newest stays whatever its size.
        keep_s: How long an id is remembered; seconds.
        uncertain_until_s: State was lost: until then (unix seconds) an id that is not known proves nothing.
    """

    def __init__(
        self,
        entries: Mapping[str, Together],
        *,
        count_max: int = MESSAGE_IDS_MAX,
        keep_s: float = MESSAGE_ID_KEEP_S,
        uncertain_until_s: float = 0.0,
    ) -> None:
        self._settled = dict(entries)
        self._draft: dict[str, float] = {}
        #: The same by batches, oldest first. A key that was forwarded anew after its time still stands with its old batch too.
        self._batches = deque(sorted(_by_batch(entries).items()))
        self._count_max = count_max
        self._keep_s = keep_s
        self._uncertain_until_s = uncertain_until_s
        #: Nothing is forgotten for its age yet: the broker may deliver what a dead relay had forwarded.
        self._returning = True
        #: Ids forgotten before their time; whoever tells of them sets it back.
        self.forgotten_early = 0

    def __len__(self) -> int:
        """
        Return how many ids are remembered, drafted ones left out.
        """
        return len(self._settled)

    def judge(self, key: str, now_s: float, *, redelivered: bool) -> tuple[Verdict, bool]:
        """
        Judge one message into the draft.

        An id past its time is new again. But a message that the broker delivers again may be the very one
        that was forwarded then, by a relay that died before it could acknowledge it.

        Returns:
            The verdict (NEW or DUPLICATE), and whether a NEW is uncertain.
        """
        seen = self._settled.get(key)
        if key in self._draft or (seen is not None and now_s - seen.at_s < self._keep_s):
            return Verdict.DUPLICATE, False
        self._draft[key] = now_s
        outlived = seen is not None
        return Verdict.NEW, now_s < self._uncertain_until_s or (outlived and redelivered)

    def forwarded_s(self, key: str) -> float:
        """
        Return when what *key* stands for was forwarded, or is about to be; unix seconds, 0: it is not known.
        """
        return self._draft.get(key) or self._settled.get(key, _NEVER).at_s

    def came_fresh(self) -> None:
        """
        Take note of a first delivery: what a dead relay had in flight has all come before it.
        """
        self._returning = False

    def settle(self, now_s: float, batch: int) -> tuple[list[str], list[int]]:
        """
        Merge the draft, its batch is in the target; return the keys that were added and the batches that were forgotten.

        Args:
            batch: Its number, higher than any before.
        """
        added = list(self._draft)
        self._draft = {}
        if added:
            together = Together(batch, now_s)
            self._settled.update(dict.fromkeys(added, together))
            self._batches.append((together, added))
        return added, self._forget(len(added) + _FORGET_MAX, now_s)

    def abandon(self) -> None:
        """
        Throw the draft away: its batch is not in the target.
        """
        self._draft = {}

    def entries(self) -> dict[str, Together]:
        """
        Return what is settled: key -> with what it was forwarded.
        """
        return dict(self._settled)

    def _forget(self, most: int, now_s: float) -> list[int]:
        forgotten: list[int] = []
        while self._batches and most > 0:
            together, keys = self._batches[0]
            in_time = now_s - together.at_s < self._keep_s
            crowded = len(self._settled) > self._count_max and len(self._batches) > 1
            if not crowded and (in_time or self._returning):
                break
            self._batches.popleft()
            gone = [key for key in keys if self._settled[key] == together]
            for key in gone:
                del self._settled[key]
            forgotten.append(together.batch)
            most -= len(keys)
            self.forgotten_early += in_time * len(gone)
        return forgotten


def _by_batch(entries: Mapping[str, Together]) -> dict[Together, list[str]]:
    found: dict[Together, list[str]] = {}
    for key, together in entries.items():
        found.setdefault(together, []).append(key)
    return found


def _has_control(text: str) -> bool:
    return any(character < " " or character == KEY_PREFIX for character in text)
