"""
Read values that a stranger wrote: never raises, keeps to limits, and notes what is wrong.

Every reader takes the value, where it stands, and the list of faults; it returns None for what cannot be used.
"""

from __future__ import annotations

from typing import Any, Final

#: Faults that are kept.
FAULTS_MAX: Final = 16
#: Bytes of a queue, exchange or routing key: an AMQP short string.
NAME_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**63 - 1
#: The year 5138 in seconds, and in milliseconds a day of 1973: there were no brokers then, and will be none.
_SECONDS_MAX: Final = 10**11


class Faults:
    """
    Collect what is wrong, so much at the most.
    """

    def __init__(self) -> None:
        self._kept: list[str] = []

    def add(self, where: str, what: str) -> None:
        """
        Note that what stands at *where* is wrong.
        """
        if len(self._kept) < FAULTS_MAX:
            self._kept.append(f"{where} {what}")

    def kept(self) -> tuple[str, ...]:
        """
        Return what was noted, the first of it.
        """
        return tuple(self._kept)


def items(value: object, at_most: int, where: str, faults: Faults) -> list[object]:
    """
    Return the first items of a list, an array of AMQP 1.0, or nothing.
    """
    value = getattr(value, "elements", value)  # proton's arrays
    if not isinstance(value, list | tuple):
        faults.add(where, "is not a list")
        return []
    if len(value) > at_most:
        faults.add(where, f"has {len(value)} entries, the first {at_most} are read")
    return list(value[:at_most])


def names(value: object, at_most: int, where: str, faults: Faults) -> tuple[str, ...]:
    """
    Return the first names of a list; nothing where there is none.
    """
    if value is None:
        return ()
    listed = enumerate(items(value, at_most, where, faults))
    read = [name(item, f"{where}[{index}]", faults) for index, item in listed]
    return tuple(one for one in read if one is not None)


def name(value: object, where: str, faults: Faults) -> str | None:
    """
    Return a text that can name a queue, an exchange or a routing key.
    """
    return text(value, NAME_BYTES_MAX, where, faults)


def text(value: object, bytes_max: int, where: str, faults: Faults) -> str | None:
    """
    Return a text of so many bytes at the most, as plain ``str``.
    """
    if not isinstance(value, str | bytes | bytearray):
        faults.add(where, "is not text")
        return None
    try:
        encoded = value[: bytes_max + 1].encode() if isinstance(value, str) else value
        if len(encoded) > bytes_max:
            faults.add(where, f"is over {bytes_max} bytes")
            return None
        return encoded.decode()
    except UnicodeError:
        faults.add(where, "is not UTF-8")
        return None


def number(value: object, where: str, faults: Faults) -> int | None:
    """
    Return a whole number from 0 to 2^63 - 1, as plain ``int``.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        faults.add(where, "is not a whole number")
        return None
    if not 0 <= value <= NUMBER_MAX:
        faults.add(where, "is not between 0 and 2^63 - 1")
        return None
    return int(value)


def digits(value: object, where: str, faults: Faults) -> int | None:
    """
    Return the number that a text, or a number, is.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return number(int(value), where, faults)
    return number(value, where, faults)


def moment(value: object, where: str, faults: Faults) -> int | None:
    """
    Return unix milliseconds of whole seconds: a number, or what a client has made of it, a point in time.

    A number too large for that is milliseconds already: so RabbitMQ tells a republished 0.9.1 history over AMQP 1.0.
    """
    if callable(in_utc := getattr(value, "utctimetuple", None)):
        try:
            value = _unix_s(in_utc())
        except OverflowError:  # less than a day from either end of the calendar
            value = -1
    told = number(value, where, faults)
    if told is not None and told > NUMBER_MAX // 1000:
        faults.add(where, "is too late")
        return None
    return told if told is None or told > _SECONDS_MAX else told * 1000


def _unix_s(moment: Any) -> int:
    """
    Return the seconds from 1970 to a ``struct_time`` of UTC, in the proleptic Gregorian calendar.
    """
    before = moment.tm_year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 + moment.tm_yday - 719_163
    return int(((days * 24 + moment.tm_hour) * 60 + moment.tm_min) * 60 + moment.tm_sec)
