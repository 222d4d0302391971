"""Mean and deviation, gathered piece by piece."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.features.moments import Moments


@given(cuts=st.lists(st.integers(1, 499), max_size=5, unique=True), shape=st.sampled_from([(), (7,), (2, 3)]))
def test_pieces_together_are_the_whole(cuts, shape):
    values = np.random.default_rng(1).normal(1e4, 0.5, (500, *shape)).astype(np.float32)
    first, *others = (Moments.of(piece) for piece in np.split(values, sorted(cuts)))
    for other in others:
        first = first.merged(other)
    assert first.steps == 500
    np.testing.assert_allclose(first.mean, values.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(first.deviation, values.std(axis=0, dtype=np.float64), rtol=1e-9)


def test_pieces_count_by_their_steps():
    made = Moments.of(np.array([0.0])).merged(Moments.of(np.array([3.0, 3.0, 3.0])))
    assert (made.steps, float(made.mean), float(made.deviation)) == (4, 2.25, np.sqrt(27 / 16))
