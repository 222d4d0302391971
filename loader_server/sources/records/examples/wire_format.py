"""Wire format of `tf.train.Example` and `SequenceExample`: where the values of each feature lie. Pure.

Rules: neither TensorFlow nor protobuf is needed. Everything that protobuf allows is read: lists packed or not, in one
run or several, messages in pieces, keys given twice (the last counts), unknown fields (skipped). What protobuf refuses
is a `MalformedExample`. An Example is read as a SequenceExample with only a context, because their fields do not clash.

A feature is `(kind, runs)`, where runs are ranges of bytes. For floats and integers, the joined runs are the list in
packed form; for bytes, each run is one value. A feature list is a Python list of features, one for each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = [
    "BYTES",
    "FLOAT",
    "INT64",
    "NO_FEATURE",
    "Feature",
    "Features",
    "MalformedExample",
    "Run",
    "count_int64",
    "features_of",
    "int64_at",
    "int64_of",
]

#: Kinds of features: field numbers of bytes_list, float_list and int64_list in `tf.train.Feature`.
BYTES, FLOAT, INT64 = 1, 2, 3

Run: TypeAlias = tuple[int, int]
Feature: TypeAlias = tuple[int, list[Run]]
Features: TypeAlias = "dict[str, Feature | list[Feature]]"

#: Wire types: a tag is the field number, and behind it three bits with the wire type.
_VARINT, _EIGHT_BYTES, _SIZED, _GROUP, _GROUP_END, _FOUR_BYTES = range(6)
_FIXED_BYTES = {_FOUR_BYTES: 4, _EIGHT_BYTES: 8}
_FIRST, _SECOND = 1 << 3 | _SIZED, 2 << 3 | _SIZED
_KINDS = {kind << 3 | _SIZED: kind for kind in (BYTES, FLOAT, INT64)}
#: Tags of values that are written one by one instead of packed.
_UNPACKED = {FLOAT: 1 << 3 | _FOUR_BYTES, INT64: 1 << 3 | _VARINT, BYTES: _FIRST}
#: Bytes of the longest varint: 64 bits, seven in each.
_LONGEST_VARINT = 10
#: The same limit as protobuf's.
_DEEPEST_GROUP = 100
#: Packed runs of at most this many bytes are decoded one by one, which is quicker than with numpy.
_FEW_BYTES = 40
#: A Feature message without a list.
NO_FEATURE: Feature = (0, [])


class MalformedExample(ValueError):
    """Bytes that are not a valid message of this format."""


def features_of(raw: bytes) -> Features:
    """Return all features by key, those of the context and the feature lists together.

    Raise MalformedExample if protobuf would refuse the bytes, or if a key is in the context and in a feature list. Only
    a packed integer of more than 10 bytes is found later, by `int64_of`.
    """
    plain = _plain_features(raw)
    return plain if plain is not None else _all_features(raw)


def _plain_features(raw: bytes) -> Features | None:
    """Return the features of an Example laid out as common writers do; None for any other layout.

    Each list has to lie in one run, with every field in order and nothing else between. This takes a third of the time
    of reading every field, which is most of the time of indexing.
    """
    features: Features = {}
    try:
        # The nesting: Example.features, in it an entry of the map for each feature, in that its key and its Feature,
        # and in the Feature a list of one kind, whose only value (packed, or a single bytes) ends with the entry.
        at = _begin(raw, 0, _FIRST, len(raw))
        while at < len(raw):
            size, entry = _varint(raw, at + 1)
            stop = entry + size
            size, key = _varint(raw, entry + 1)
            if raw[at] != _FIRST or raw[entry] != _FIRST:
                return None
            kind = _KINDS[raw[feature := _begin(raw, key + size, _SECOND, stop)]]
            at = _begin(raw, _begin(raw, feature, raw[feature], stop), _FIRST, stop)
            # The last byte of an integer lacks the top bit; a list that ends otherwise is cut.
            if (kind == FLOAT and (stop - at) % 4) or (kind == INT64 and raw[stop - 1] > 127):
                return None
            features[raw[key : key + size].decode()] = (kind, [(at, stop)])
            at = stop
    except (IndexError, KeyError, ValueError):  # another layout, or malformed: `_all_features` decides
        return None
    return features


def _begin(raw: bytes, at: int, tag: int, stop: int) -> int:
    """Return where the content of the field at `at` begins.

    Raise a KeyError if the field has another tag, or does not end at `stop`; an IndexError if the bytes end before; or
    MalformedExample if its size has more than 10 bytes.
    """
    size, begin = _varint(raw, at + 1)
    if raw[at] != tag or begin + size != stop:
        raise KeyError(tag)
    return begin


def _all_features(raw: bytes) -> Features:
    """Return the features of any valid message, field by field; raise MalformedExample for an invalid one.

    Raise it too for a key that is in the context and in a feature list.
    """
    try:
        context = {key: _feature(raw, pieces) for key, pieces in _entries(raw, _FIRST)}
        lists: Features = {
            key: [_feature(raw, [step]) for piece in pieces for step in _values(raw, *piece, _FIRST)]
            for key, pieces in _entries(raw, _SECOND)
        }
    except IndexError:
        raise MalformedExample("it ends in the middle of a field") from None
    except UnicodeDecodeError:
        raise MalformedExample("a key is not UTF-8") from None
    if both := sorted(lists.keys() & context.keys()):
        raise MalformedExample(f'"{both[0]}" is a feature of the context and a feature list')
    return {**context, **lists}


def _entries(raw: bytes, tag: int) -> Iterator[tuple[str, list[Run]]]:
    """Yield the key of each entry of the maps with this tag, with the pieces of its value.

    A map may itself come in pieces, and a key more than once: the last entry with it counts. Raise MalformedExample or
    an IndexError for an invalid message, and a UnicodeDecodeError for a key that is not UTF-8.
    """
    for piece in _values(raw, 0, len(raw), tag):
        for entry in _values(raw, *piece, _FIRST):
            # As in protobuf, an entry without a key has the empty one, and of several keys the last counts.
            key, value = b"", list[Run]()
            for field, start, stop in _fields(raw, *entry):
                if field == _FIRST:
                    key = raw[start:stop]
                elif field == _SECOND:
                    value.append((start, stop))
            yield key.decode(), value


def _values(raw: bytes, start: int, stop: int, wanted: int) -> Iterator[Run]:
    """Yield the byte ranges of the fields with this tag in a message; raise MalformedExample for an invalid one.

    Raise an IndexError if the bytes end within a field's tag or size.
    """
    for tag, begin, end in _fields(raw, start, stop):
        if tag == wanted:
            yield begin, end


def _feature(raw: bytes, pieces: list[Run]) -> Feature:
    """Return one feature from all pieces of its message; raise MalformedExample if one is malformed.

    Raise an IndexError if the bytes end within a field.
    """
    # Protobuf merges pieces of a message: lists of the same kind are joined, but the kinds are a `oneof`, in which a
    # later one replaces an earlier.
    kind, runs = NO_FEATURE[0], list[Run]()
    for start, stop in pieces:
        for tag, begin, end in _fields(raw, start, stop):
            new = _KINDS.get(tag)
            if new is None:
                continue
            if new != kind:
                kind, runs = new, []
            runs += _runs(raw, kind, begin, end)
    return kind, runs


def _runs(raw: bytes, kind: int, start: int, stop: int) -> Iterator[Run]:
    """Yield the byte ranges of a list's values; raise MalformedExample if one ends within a value or is malformed.

    Raise an IndexError if the bytes end within a field's tag or size.
    """
    for tag, begin, end in _fields(raw, start, stop):
        if tag == _FIRST:
            if kind == FLOAT and (end - begin) % 4:
                raise MalformedExample(f"a list of floats has {end - begin} bytes")
            if kind == INT64 and end > begin and raw[end - 1] > 127:
                raise MalformedExample("a list of integers ends in the middle of one")
            yield begin, end
        elif tag == _UNPACKED[kind]:
            yield begin, end


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message: the tag, and where the value (behind its size, if it has one) begins and ends.

    Raise MalformedExample for a field that is longer than its message, has the number 0 or an unknown wire type, for a
    number of more than 10 bytes, and for a group without end or nested too deep. Raise an IndexError if the bytes end
    within a field's tag or size.
    """
    while at < end:
        tag = raw[at]
        at += 1
        # Almost all tags and sizes have one byte: the call of `_varint` is saved for the others.
        if tag > 127:
            tag, at = _varint(raw, at - 1)
        form = tag & 7
        start = at
        if form == _SIZED:
            size = raw[at]
            at += 1
            if size > 127:
                size, at = _varint(raw, at - 1)
            start = at
            at += size
        elif form in _FIXED_BYTES:
            at += _FIXED_BYTES[form]
        elif form == _VARINT:
            at = _varint(raw, at)[1]
        elif form == _GROUP:
            at = _group_end(raw, at, end, tag)
        else:
            raise MalformedExample(f"a field is written in form {form}")
        if at > end or tag < 8:
            raise MalformedExample("a field is longer than its message" if tag >= 8 else "a field has the number 0")
        yield tag, start, at


def _group_end(raw: bytes, at: int, end: int, opening: int) -> int:
    """Return where a group ends.

    Groups are protobuf's deprecated way to write nested messages; they are skipped here, but may be nested themselves.
    Raise MalformedExample if the group has no end, is nested too deep or holds a malformed field, and an IndexError if
    the bytes end within a field's tag or size.
    """
    within = [opening]
    while within and at < end:
        tag, after = _varint(raw, at)
        if tag == within[-1] - _GROUP + _GROUP_END:  # the end has the field number of the innermost open group
            within.pop()
            at = after
        elif tag & 7 == _GROUP:
            within.append(tag)
            at = after
        else:
            at = next(_fields(raw, at, end))[2]
        if len(within) > _DEEPEST_GROUP:
            raise MalformedExample(f"groups nested more than {_DEEPEST_GROUP} deep")
    if within:
        raise MalformedExample("a group does not end")
    return at


def _varint(raw: mmap.mmap | bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at` (seven bits a byte, the lowest first) and where it ends.

    Raise MalformedExample if it has more than 10 bytes, and an IndexError if the bytes end before it does.
    """
    if raw[at] < 128:
        return raw[at], at + 1
    value = shift = 0
    for place in range(at, at + _LONGEST_VARINT):
        byte = raw[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise MalformedExample("a number has more than 10 bytes")


# --- integers ---


def count_int64(raw: bytes, runs: Sequence[Run]) -> int:
    """Return how many integers these runs hold: each has exactly one byte without the top bit."""
    if len(runs) == 1 and runs[0][1] - runs[0][0] == 1:
        return 1
    return sum(int(np.count_nonzero(np.frombuffer(raw, np.uint8, stop - start, start) < 128)) for start, stop in runs)


def int64_at(raw: mmap.mmap | bytes, at: int) -> int:
    """Return the integer that begins at `at`; most have two bytes at most, so these take a short way.

    Raise MalformedExample if it has more than 10 bytes, and an IndexError if the bytes end before it does.
    """
    first = raw[at]
    if first < 128:
        return first
    if (second := raw[at + 1]) < 128:
        return first & 127 | second << 7
    value, _ = _varint(raw, at)
    value %= 2**64  # ten bytes hold 70 bits, and protobuf drops those beyond 64
    return value - 2**64 if value >= 2**63 else value


def _few_int64(raw: mmap.mmap | bytes, at: int, stop: int) -> NDArray[np.int64]:
    """Decode a short run one integer at a time, because numpy takes 20 µs to begin with.

    Raise MalformedExample if an integer has more than 10 bytes, and an IndexError if the bytes end within one.
    """
    numbers = []
    while at < stop:
        value, at = _varint(raw, at)
        numbers.append(value % 2**64)
    return np.array(numbers, np.uint64).view(np.int64)


def int64_of(raw: mmap.mmap | bytes, start: int, stop: int) -> NDArray[np.int64]:
    """Return the integers of a packed run in a new array; raise MalformedExample if one has more than 10 bytes.

    The run has to end with the last byte of an integer, which is not checked here: an IndexError, a ValueError or other
    numbers may result.
    """
    if stop - start <= _FEW_BYTES:
        return _few_int64(raw, start, stop)
    octets = np.frombuffer(raw, np.uint8, stop - start, start)
    last = octets < 128
    if last.all():
        return octets.astype(np.int64)
    ends = np.flatnonzero(last)
    begins = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends + 1 - begins
    if sizes.max() > _LONGEST_VARINT:
        raise MalformedExample("a number has more than 10 bytes")
    # All bytes at once: shift the lower seven bits of each to their place, then OR the bytes of each integer.
    shifts = 7 * (np.arange(len(octets)) - np.repeat(begins, sizes))
    parts = (octets & np.uint8(127)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(parts, begins).view(np.int64)
