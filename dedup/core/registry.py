"""What publishers and a registry tell each other: requests, answers, and their form on the wire."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final, TypeVar

from attrs import frozen

from dedup.core.identity import SEQUENCE_MAX, validate_publisher_id
from dedup.errors import InvalidIdentityError, RegistryFormatError

#: Exchange that publishers ask through, and the queue behind it.
REGISTRY: Final = "dedup.registry"
#: Longest request or answer that is looked at; bytes.
MESSAGE_BYTES_MAX: Final = 4096
#: Longest nonce, and longest description of a holder; characters.
OWNER_MAX: Final = 64
HOLDER_MAX: Final = 200
_ID_MAX: Final = 2**53

_Choice = TypeVar("_Choice", bound=Enum)


def lock_queue(publisher_id: str) -> str:
    """
    Return the name of the exclusive queue that whoever holds *publisher_id* has declared.
    """
    return f"dedup.publisher.{publisher_id}"


class Act(Enum):
    """
    What is asked for.
    """

    #: A new range, for a new owner.
    REGISTER = "register"
    #: Whether the owner's range is still the newest; a registry that forgot it takes note of it.
    RENEW = "renew"
    #: Who holds the publisher id; nothing changes.
    SHOW = "show"


@frozen
class Request:
    """
    What a publisher asks the registry for.
    """

    act: Act
    publisher_id: str
    #: Tells one owner from every other; asking again as the same owner gives the same answer.
    owner: str
    #: Who that is, for people.
    holder: str = ""
    #: REGISTER: the highest sequence it knows was used, 0 for none. RENEW: its base.
    last: int = 0
    #: Comes back with the answer.
    id: int = 0


@frozen
class Record:
    """
    What the registry knows of one publisher id.
    """

    #: Base of the newest range; 0: nothing is known.
    base: int = 0
    owner: str = ""
    holder: str = ""
    #: When that range was handed out, unix seconds; 0: before the registry lost its memory.
    at_s: int = 0


class Refusal(Enum):
    """
    Why a request was not carried out.
    """

    #: Ask again a little later: Redis does not answer, or the clock has to move on.
    LATER = "later"
    #: It can never be carried out.
    INVALID = "invalid"
    #: No room for one more publisher id.
    FULL = "full"


@frozen
class Answer:
    """
    What the registry says: a record, or why there is none.
    """

    id: int
    record: Record = Record()
    refusal: Refusal | None = None
    #: Words about the refusal.
    text: str = ""


def encode_request(request: Request) -> bytes:
    """
    Return *request* as JSON.
    """
    return _json(
        {
            "id": request.id,
            "act": request.act.value,
            "publisher_id": request.publisher_id,
            "owner": request.owner,
            "holder": request.holder[:HOLDER_MAX],
            "last": request.last,
        }
    )


def decode_request(data: bytes) -> Request:
    """
    Return the request in *data*; total but for its one error.

    Raises:
        RegistryFormatError: it is none.
    """
    fields = _Fields(data)
    owner = fields.text("owner", OWNER_MAX)
    if not (owner.isascii() and owner.isalnum()):
        raise RegistryFormatError("owner is not of letters and digits")
    try:
        publisher_id = validate_publisher_id(fields.get("publisher_id"))
    except InvalidIdentityError as error:
        raise RegistryFormatError(str(error)) from error
    return Request(
        fields.one_of("act", Act),
        publisher_id,
        owner,
        fields.text("holder", HOLDER_MAX),
        fields.number("last", SEQUENCE_MAX),
        fields.number("id", _ID_MAX),
    )


def encode_answer(answer: Answer) -> bytes:
    """
    Return *answer* as JSON.
    """
    record = answer.record
    return _json(
        {
            "id": answer.id,
            "refusal": answer.refusal.value if answer.refusal else "",
            "text": answer.text,
            "base": record.base,
            "owner": record.owner,
            "holder": record.holder,
            "at": record.at_s,
        }
    )


def decode_answer(data: bytes) -> Answer:
    """
    Return the answer in *data*; total but for its one error.

    Raises:
        RegistryFormatError: it is none.
    """
    fields = _Fields(data)
    refusal = fields.text("refusal", OWNER_MAX)
    record = Record(
        fields.number("base", SEQUENCE_MAX),
        fields.text("owner", OWNER_MAX),
        fields.text("holder", HOLDER_MAX),
        fields.number("at", _ID_MAX),
    )
    return Answer(
        fields.number("id", _ID_MAX),
        record,
        fields.one_of("refusal", Refusal) if refusal else None,
        fields.text("text", MESSAGE_BYTES_MAX),
    )


class _Fields:
    """
    The fields of a JSON object; whatever is read is checked.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > MESSAGE_BYTES_MAX:
            raise RegistryFormatError(f"{len(data)} bytes are more than {MESSAGE_BYTES_MAX}")
        try:
            found = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise RegistryFormatError(f"not JSON: {type(error).__name__}") from error
        if not isinstance(found, dict):
            raise RegistryFormatError("not a JSON object")
        self._found: dict[str, Any] = found

    def get(self, name: str) -> object:
        """
        Return a field as it is; None when it is not there.
        """
        return self._found.get(name)

    def text(self, name: str, size_max: int) -> str:
        """
        Return a text that can be shown; empty when it is not there.
        """
        value = self._found.get(name, "")
        if not isinstance(value, str) or len(value) > size_max:
            raise RegistryFormatError(f"{name} is no text of at most {size_max} characters")
        return "".join(character if character.isprintable() else "?" for character in value)

    def number(self, name: str, high: int) -> int:
        """
        Return a number from 0 to *high*; 0 when it is not there.
        """
        value = self._found.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise RegistryFormatError(f"{name} is no whole number from 0 to {high}")
        return value

    def one_of(self, name: str, kind: type[_Choice]) -> _Choice:
        """
        Return a member of *kind*.
        """
        try:
            return kind(self._found.get(name))
        except ValueError as error:
            raise RegistryFormatError(
                f"{name} is none of {', '.join(member.value for member in kind)}"
            ) from error


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
