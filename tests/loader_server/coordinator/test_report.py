"""The report: who is the limit, and how a long one is cut."""

from __future__ import annotations

import json

import pytest

from loader_server.coordinator.report import limit_of, text_of


def report(*, workers: int = 0, culprits: int = 0, **trainers: int) -> dict[str, object]:
    return {
        "job": "digits",
        "streams": {
            name: {"attached": count, "trainers": [{"name": f"t{number:04d}"} for number in range(count)]}
            for name, count in trainers.items()
        },
        "workers": [{"name": f"w{number:04d}"} for number in range(workers)],
        "culprits": [{"identity": f"c{number:04d}"} for number in range(culprits)],
    }


@pytest.mark.parametrize(
    ("waited", "limit"), [(None, None), (0, "trainers"), (49.9, "trainers"), (50, "loaders"), (1000, "loaders")]
)
def test_the_limit_is_who_is_waited_for(waited, limit):
    assert limit_of(waited) == limit


@pytest.mark.fault(52)
class TestCutting:
    def test_a_short_one_is_whole(self):
        whole = report(workers=3, culprits=2, train=2)
        text = text_of(whole)
        assert json.loads(text) == whole | {"cut": {}}
        assert text_of(whole, most=len(text)) == text
        assert json.loads(text_of(whole, most=len(text) - 1))["cut"] != {}

    @pytest.mark.parametrize("most", [500, 1000, 3000, 18_000])
    def test_a_long_one_fits_and_says_what_it_lacks(self, most):
        whole = report(workers=300, culprits=400, train=4, dev=500)
        text = text_of(whole, most)
        assert most - 100 < len(text) <= most
        cut = json.loads(text)
        lacking = {
            "workers": 300 - len(cut["workers"]),
            "culprits": 400 - len(cut["culprits"]),
            "trainers": 504 - sum(len(stream["trainers"]) for stream in cut["streams"].values()),
        }
        assert cut["cut"] == {key: count for key, count in lacking.items() if count}
        assert cut["streams"]["dev"]["attached"] == 500

    def test_short_lists_stay_whole_and_the_long_ones_share_the_rest(self):
        cut = json.loads(text_of(report(workers=5, culprits=1000, train=4, dev=1000), most=6000))
        assert len(cut["workers"]) == 5
        assert len(cut["streams"]["train"]["trainers"]) == 4
        assert len(cut["culprits"]) == pytest.approx(len(cut["streams"]["dev"]["trainers"]), rel=0.2)

    def test_what_it_is_cut_from_stays_as_it_is(self):
        whole = report(workers=300, dev=500)
        text_of(whole, most=500)
        assert whole == report(workers=300, dev=500)
