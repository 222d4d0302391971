"""What was written for TensorBoard, read without TensorFlow."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Scalar", "scalars"]

#: Of each message: its fields' names, numbers and types (or the message that they hold), and which are repeated.
_FORM = {
    "Tensor": {"tensor_content": (4, 12, False), "float_val": (5, 2, True)},
    "Value": {"tag": (1, 9, False), "tensor": (8, "Tensor", False)},
    "Summary": {"value": (1, "Value", True)},
    "Event": {"step": (2, 3, False), "summary": (5, "Summary", False)},
}


class Scalar(NamedTuple):
    """One value at one step."""

    name: str
    step: int
    value: float


def scalars(folder: Path) -> list[Scalar]:
    """All values in a folder's files, each file's in the order that they were written in."""
    found = []
    for path in folder.iterdir():
        rest = path.read_bytes()
        while rest:
            (length,) = struct.unpack("<Q", rest[:8])
            event = _Event.FromString(rest[12 : 12 + length])
            found += [Scalar(value.tag, event.step, _number(value.tensor)) for value in event.summary.value]
            rest = rest[16 + length :]
    return found


def _number(tensor: Any) -> float:
    content = tensor.tensor_content
    return float(struct.unpack("<f", content)[0] if content else sum(tensor.float_val))


def _event() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="stoker_summaries.proto", package="stoker_summaries")
    file.syntax = "proto3"
    for name, fields in _FORM.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                made.type = kind
            else:
                made.type, made.type_name = 11, f".stoker_summaries.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("stoker_summaries.Event"))


_Event = _event()
