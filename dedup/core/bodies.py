"""
Notice that a publisher has used one sequence for two messages: keep a digest of each body within its window.

A message that carries a sequence already seen is dropped as a copy. Where it has another body it is none, and dropping it
would lose it. So digests are compared, where both are known; one that is not known (its shim was killed before it could
keep it, or it lies below the window) says nothing. A digest is taken of what was forwarded and of nothing else: a copy is
never called a conflict, and a conflict is missed at worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

#: Bytes of one digest: a false match, one in four thousand million, leaves things as they are without the check.
DIGEST_BYTES: Final = 4
#: Sequences whose digests are kept together, as one field in Redis.
CHUNK_SIZE: Final = 64
CHUNK_BYTES: Final = CHUNK_SIZE * DIGEST_BYTES
_UNKNOWN: Final = bytes(DIGEST_BYTES)

#: Publisher id and number of a chunk -> the digests of its sequences, zeros where none is known.
Chunks = Mapping[tuple[str, int], bytes]


class Bodies:
    """
    The digests of the bodies that publishers sent, with those of one batch kept apart until it is forwarded.

    Args:
        chunks: What is known.
        size: Window size in sequences; what lies further below a publisher's newest is forgotten.
    """

    def __init__(self, chunks: Chunks, size: int) -> None:
        self._settled: dict[str, dict[int, bytes]] = {}
        self._draft: dict[tuple[str, int], bytes] = {}
        self._size = size
        for (publisher, number), digests in chunks.items():
            self._settled.setdefault(publisher, {})[number] = digests

    def note(self, publisher: str, sequence: int, digest: bytes) -> None:
        """
        Take note in the draft of what is forwarded.
        """
        self._draft[publisher, sequence] = digest

    def differs(self, publisher: str, sequence: int, digest: bytes) -> bool:
        """
        Say whether another body than this one is known to have been forwarded.
        """
        if not digest:
            return False
        known = self._draft.get((publisher, sequence))
        if known is None:
            number, at = _place(sequence)
            known = self._settled.get(publisher, {}).get(number, bytes(CHUNK_BYTES))[at : at + DIGEST_BYTES]
        return _UNKNOWN not in (known, digest) and known != digest

    def settle(
        self, stored: Mapping[str, Iterable[int]], evicted: Iterable[str]
    ) -> dict[tuple[str, int], bytes]:
        """
        Merge what is *stored* of the draft, forget *evicted* publishers, and return what changed; empty: it is gone.
        """
        changed: dict[tuple[str, int], bytes] = {}
        for publisher in evicted:
            changed.update({(publisher, number): b"" for number in self._settled.pop(publisher, ())})
        for publisher, sequences in stored.items():
            for sequence in sequences:
                if (digest := self._draft.get((publisher, sequence))) is not None:
                    changed.update(self._keep(publisher, sequence, digest))
        self._draft = {}
        return changed

    def abandon(self) -> None:
        """
        Throw the draft away: its batch is not in the target.
        """
        self._draft = {}

    def chunks(self) -> dict[tuple[str, int], bytes]:
        """
        Return all that is settled.
        """
        return {(name, number): kept for name, held in self._settled.items() for number, kept in held.items()}

    def _keep(self, publisher: str, sequence: int, digest: bytes) -> dict[tuple[str, int], bytes]:
        number, at = _place(sequence)
        chunks = self._settled.setdefault(publisher, {})
        changed = {} if number in chunks else self._forget(publisher, sequence)
        before = chunks.get(number, bytes(CHUNK_BYTES))
        chunks[number] = changed[publisher, number] = before[:at] + digest + before[at + DIGEST_BYTES :]
        return changed

    def _forget(self, publisher: str, sequence: int) -> dict[tuple[str, int], bytes]:
        """
        Forget what lies below the window that ends with *sequence*.
        """
        chunks = self._settled[publisher]
        lowest = (sequence - self._size) // CHUNK_SIZE
        gone = [number for number in chunks if number < lowest]
        for number in gone:
            del chunks[number]
        return {(publisher, number): b"" for number in gone}


def without(chunks: Chunks, several: Iterable[Mapping[str, Iterable[int]]]) -> Chunks:
    """
    Return *chunks* where nothing is known of *several* sequences, by publisher.

    What a dead relay forwarded last has no digest; one that is there is of an earlier message, from before its publisher
    was forgotten.
    """
    found = dict(chunks)
    for sequences in several:
        for publisher, numbers in sequences.items():
            for sequence in numbers:
                number, at = _place(sequence)
                if (digests := found.get((publisher, number))) is not None:
                    found[publisher, number] = digests[:at] + _UNKNOWN + digests[at + DIGEST_BYTES :]
    return found


def _place(sequence: int) -> tuple[int, int]:
    """
    Return the chunk of *sequence* and where its digest begins there.
    """
    number, index = divmod(sequence, CHUNK_SIZE)
    return number, index * DIGEST_BYTES
