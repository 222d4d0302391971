"""tf.train.Example and SequenceExample as protobuf itself has them, without TensorFlow."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["Example", "SequenceExample", "example"]

_LIST, _NUMBER_TYPES = "{}List", {"Bytes": 12, "Float": 2, "Int64": 3}


def _field(message: Any, name: str, number: int, kind: str | int, *, repeated: bool = False) -> Any:
    made = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if isinstance(kind, int):
        made.type = kind
    else:
        made.type, made.type_name = 11, f".stoker_tests.{kind}"
    return made


def _map(message: Any, name: str, kind: str) -> None:
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _field(entry, "key", 1, 9)
    _field(entry, "value", 2, kind)
    _field(message, name, 1, f"{message.name}.{entry.name}", repeated=True)


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="stoker_tests.proto", package="stoker_tests", syntax="proto3")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_NUMBER_TYPES.items(), 1):
        _field(file.message_type.add(name=_LIST.format(name)), "value", 1, kind, repeated=True)
        _field(feature, f"{name.lower()}_list", number, _LIST.format(name)).oneof_index = 0
    _field(file.message_type.add(name="FeatureList"), "feature", 1, "Feature", repeated=True)
    _map(file.message_type.add(name="Features"), "feature", "Feature")
    _map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    _field(file.message_type.add(name="Example"), "features", 1, "Features")
    sequence = file.message_type.add(name="SequenceExample")
    _field(sequence, "context", 1, "Features")
    _field(sequence, "feature_lists", 2, "FeatureLists")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
Example: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("stoker_tests.Example"))
SequenceExample: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("stoker_tests.SequenceExample"))


def example(**features: Any) -> bytes:
    """An Example of lists of floats, integers, or bytes and texts; a single value is a list of one."""
    made = Example()
    for key, given in features.items():
        values = [given] if isinstance(given, str | bytes) or not hasattr(given, "__len__") else list(given)
        feature = made.features.feature[key]
        if values and isinstance(values[0], str | bytes):
            feature.bytes_list.value.extend(v.encode() if isinstance(v, str) else v for v in values)
        elif values and isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return made.SerializeToString(deterministic=True)  # type: ignore[no-any-return]
