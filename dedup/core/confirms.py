"""Keep which publishes of one channel await a confirm."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class _Gone:
    """
    Marks a tag that was settled, or never tracked.
    """


_GONE = _Gone()


class Confirms(Generic[T]):
    """
    Tag -> item for the publishes of one channel, in the order of their tags.

    Tags rise by one with each publish, so a list and the tag of its head hold them, and
    a confirm of many is one slice. Total over what a broker may say: tags never sent
    or settled before name nothing.

    A broker may nack what it has just acknowledged (``ack multiple 3460``, then ``nack
    multiple 3459``: pika issue 911). The nack wins while the items are still known: those
    of the last *multiple* confirm are kept until the next one for that.
    """

    def __init__(self) -> None:
        self._items: list[T | _Gone] = []
        #: Tag of the first item.
        self._first = 1
        self._size = 0
        self._doubtful: list[T | _Gone] = []
        self._doubtful_first = 1

    def __len__(self) -> int:
        return self._size

    @property
    def smallest(self) -> tuple[int, T] | None:
        """
        The lowest tag that awaits its confirm, with its item; None when there is none.
        """
        if not self._items:
            return None
        item = self._items[0]
        assert not isinstance(item, _Gone)
        return self._first, item

    def insert(self, tag: int, item: T) -> None:
        """
        Remember that *item* was published as *tag*, the highest tag so far.
        """
        if not self._items:
            assert tag >= self._first, (tag, self._first)
            self._first = tag
        else:
            skipped = tag - self._first - len(self._items)
            assert skipped >= 0, (tag, self._first)
            if skipped:
                self._items.extend([_GONE] * skipped)
        self._items.append(item)
        self._size += 1

    def confirm(self, tag: int, *, multiple: bool = False) -> list[T]:
        """
        Return what the broker took with this ack, oldest first; it is no longer awaited.

        *multiple* speaks of every tag up to *tag*; tag 0 with it, of all (AMQP 0.9.1, basic.ack).
        """
        if not multiple:
            return self._take_one(tag)
        self._doubtful_first = self._first
        self._doubtful = self._take_up_to(tag)
        return [item for item in self._doubtful if not isinstance(item, _Gone)]

    def reject(self, tag: int, *, multiple: bool = False) -> list[T]:
        """
        Return what the broker refused with this nack, oldest first.

        When *tag* itself was acknowledged before, the nack contradicts: what the last *multiple*
        confirm settled up to *tag* is returned once more.
        """
        reopened = self._reopen(tag, multiple=multiple) if not self._awaits(tag) else []
        if not multiple:
            return reopened or self._take_one(tag)
        return reopened + [item for item in self._take_up_to(tag) if not isinstance(item, _Gone)]

    def clear(self) -> list[T]:
        """
        Forget the channel and return what was still awaited, oldest first; tags start at 1 again.
        """
        items = [item for item in self._items if not isinstance(item, _Gone)]
        self._items, self._doubtful = [], []
        self._first, self._size = 1, 0
        return items

    def _awaits(self, tag: int) -> bool:
        index = tag - self._first
        return tag == 0 or (0 <= index < len(self._items) and self._items[index] is not _GONE)

    def _take_one(self, tag: int) -> list[T]:
        index = tag - self._first
        if not 0 <= index < len(self._items):
            return []
        item = self._items[index]
        if isinstance(item, _Gone):
            return []
        self._items[index] = _GONE
        self._size -= 1
        self._trim()
        return [item]

    def _take_up_to(self, tag: int) -> list[T | _Gone]:
        end = len(self._items) if tag == 0 else max(0, tag - self._first + 1)
        taken = self._items[:end]
        del self._items[:end]
        self._first += len(taken)
        self._size -= len(taken) - taken.count(_GONE)
        self._trim()
        return taken

    def _reopen(self, tag: int, *, multiple: bool) -> list[T]:
        end = tag - self._doubtful_first + 1
        if end < 1 or end > len(self._doubtful):
            return []
        start = 0 if multiple else end - 1
        reopened = [item for item in self._doubtful[start:end] if not isinstance(item, _Gone)]
        self._doubtful[start:end] = [_GONE] * (end - start)
        return reopened

    def _trim(self) -> None:
        settled = 0
        for item in self._items:
            if item is not _GONE:
                break
            settled += 1
        if settled:
            del self._items[:settled]
            self._first += settled
