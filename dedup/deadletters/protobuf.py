"""Show protobuf through a descriptor set, as ``protoc --include_imports --descriptor_set_out`` makes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dedup.errors import ConfigError

#: A descriptor set with everything a large company has is smaller.
_SET_BYTES_MAX: Final = 64 << 20


class Descriptors:
    """
    The message types of one descriptor set.

    Raises:
        ConfigError: the file cannot be read or is none, or the extra "protobuf" is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ConfigError("protobuf bodies need: pip install 'dedup[protobuf]'") from error
        self._error: type[Exception] = message.DecodeError
        self._to_text: Any = text_format.MessageToString
        self._class_of: Any = message_factory.GetMessageClass
        self._pool: Any = descriptor_pool.DescriptorPool()
        listed = descriptor_pb2.FileDescriptorSet()
        try:
            with path.open("rb") as file:
                listed.ParseFromString(file.read(_SET_BYTES_MAX))
            for single in listed.file:
                self._pool.Add(single)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (message.DecodeError, TypeError) as error:
            raise ConfigError(
                f"{path} is no descriptor set; make one with: protoc --include_imports --descriptor_set_out={path} FILE.proto"
            ) from error

    def text(self, name: str, body: bytes) -> str:
        """
        Return the message of type *name* as protobuf's text format, fields that are not in the descriptors included.

        Raises:
            ValueError: it is no such message, or there is no such type.
        """
        try:
            message = self._class_of(self._pool.FindMessageTypeByName(name))()
        except (KeyError, TypeError):
            raise ValueError(f"the descriptor set has no message type {name!r}") from None
        try:
            message.ParseFromString(body)
            return str(self._to_text(message, as_utf8=True, print_unknown_fields=True))
        except (self._error, RecursionError):
            raise ValueError(f"it is no {name}") from None
