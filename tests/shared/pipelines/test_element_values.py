import numpy as np
import pytest

from shared.pipelines.element_values import (
    ElementValue,
    digest_of,
    element_of,
    fields_of_element,
    flat_values,
    values_of_element,
)
from shared.wire.batch_layout import Field, fields_of_batch

VALUES = (
    ElementValue("feat", "float32", (None, None, 2)),
    ElementValue("n", "int64", (4,)),
    ElementValue("scalar", "float64", ()),
    ElementValue("wide", "int32", (3, None)),
)
ELEMENT = {
    "feat": np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    "n": np.arange(4),
    "scalar": np.float64(0.5),
    "wide": np.arange(6, dtype=np.int32).reshape(3, 2),
}


def test_axes_up_to_the_last_that_varies_are_laid_into_one():
    fields = fields_of_element(VALUES)
    assert fields == (
        Field(key="feat:values", dtype="float32", shape=(None, 2)),
        Field(key="feat:shape", dtype="int64", shape=(3,)),
        Field(key="n:values", dtype="int64", shape=(4,)),
        Field(key="scalar:values", dtype="float64", shape=()),
        Field(key="wide:values", dtype="int32", shape=(None,)),
        Field(key="wide:shape", dtype="int64", shape=(2,)),
    )


def test_what_crosses_says_what_an_element_holds():
    feat, *others, wide = values_of_element(fields_of_batch(fields_of_element(VALUES)))
    assert (feat, *others) == VALUES[:3]
    assert wide == ElementValue("wide", "int32", (None, None)), "the axis before one that varies counts as varying"


def test_an_element_comes_back_as_it_was():
    flat = flat_values(VALUES, ELEMENT)
    assert {key: array.shape for key, array in flat.items()} == {
        "feat:values": (6, 2), "feat:shape": (3,), "n:values": (4,), "scalar:values": (), "wide:values": (6,),
        "wide:shape": (2,),
    }  # fmt: skip
    back = element_of({key: np.asarray(array)[None] for key, array in flat.items()})
    assert back.keys() == ELEMENT.keys()
    for key, array in ELEMENT.items():
        np.testing.assert_array_equal(back[key], array)


def test_an_element_without_steps_keeps_what_is_fixed():
    zeros = {"feat:values": np.zeros((1, 0, 2)), "feat:shape": np.zeros((1, 3), np.int64)}
    assert element_of(zeros)["feat"].shape == (0, 0, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"wide": np.arange(6, dtype=np.int32).reshape(2, 3)},
        {"n": np.array([0, 1, 2, 4])},
        {"feat": np.arange(12, dtype=np.float32).reshape(3, 2, 2)},
    ],
)
def test_a_digest_tells_bytes_and_shapes_apart(other):
    digest = digest_of(flat_values(VALUES, ELEMENT))
    assert digest == digest_of(flat_values(VALUES, dict(reversed(ELEMENT.items()))))
    assert digest != digest_of(flat_values(VALUES, {**ELEMENT, **other}))
    assert 0 < digest < 2**63
