"""Levels of processors, and the environment that keeps libraries to one."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from loader_server.processor.levels import LEVELS, MARK, environment_of, level_in, machine_in
from shared.settings.job import PROCESSORS

#: What numpy 2.4 chooses by on x86-64, and what 2.2 did.
NEW = ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR")
OLD = (
    *("SSSE3", "SSE41", "POPCNT", "SSE42", "AVX", "F16C", "XOP", "FMA4", "FMA3", "AVX2", "AVX512F", "AVX512CD"),
    *("AVX512_KNL", "AVX512_KNM", "AVX512_SKX", "AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR"),
)
ICL_ON = {"AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR", "AVX512_KNL", "AVX512_KNM", "XOP", "FMA4"}


def disabled(level: str, dispatched: tuple[str, ...]) -> set[str]:
    return set(environment_of(level, dispatched, {}).get("NPY_DISABLE_CPU_FEATURES", "").split())


def test_the_job_file_knows_exactly_these_levels_from_the_lowest_on() -> None:
    assert tuple(LEVELS) == PROCESSORS
    for lower, higher in pairwise(LEVELS.values()):
        assert lower.features < higher.features
        assert set(lower.above) > set(higher.above)


@pytest.mark.parametrize(
    ("level", "dispatched", "off"),
    [
        ("x86-64-v2", NEW, {"X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"}),
        ("x86-64-v3", NEW, {"X86_V4", "AVX512_ICL", "AVX512_SPR"}),
        ("x86-64-v4", NEW, {"AVX512_ICL", "AVX512_SPR"}),
        ("x86-64-v2", OLD, ICL_ON | {"AVX", "F16C", "FMA3", "AVX2", "AVX512F", "AVX512CD", "AVX512_SKX"}),
        ("x86-64-v3", OLD, ICL_ON | {"AVX512F", "AVX512CD", "AVX512_SKX"}),
        ("x86-64-v4", OLD, ICL_ON),
        ("x86-64-v3", ("X86_V3", "AVX10_2"), {"AVX10_2"}),
    ],
)
def test_numpy_keeps_what_the_level_has_and_nothing_that_nobody_knows(
    level: str, dispatched: tuple[str, ...], off: set[str]
) -> None:
    assert disabled(level, dispatched) == off


def test_a_numpy_with_nothing_above_the_level_has_nothing_to_disable() -> None:
    assert "NPY_DISABLE_CPU_FEATURES" not in environment_of("x86-64-v3", ("X86_V3",), {})


@pytest.mark.parametrize(
    ("level", "core", "arrow", "onednn", "simd64"),
    [
        ("x86-64-v2", "Nehalem", "SSE4_2", "SSE41", "0"),
        ("x86-64-v3", "Haswell", "AVX2", "AVX2", None),
        ("x86-64-v4", "SkylakeX", "AVX512", "AVX512_CORE", None),
    ],
)
def test_each_library_is_told_in_its_own_words(
    level: str, core: str, arrow: str, onednn: str, simd64: str | None
) -> None:
    made = environment_of(level, NEW, {"SOXR_USE_SIMD": "0", "SOXR_USE_SIMD64": "1", "NPY_ENABLE_CPU_FEATURES": "X"})
    assert made["OPENBLAS_CORETYPE"] == core
    assert made["ARROW_USER_SIMD_LEVEL"] == arrow
    assert made["ONEDNN_MAX_CPU_ISA"] == onednn
    assert made.get("SOXR_USE_SIMD64") == simd64
    assert not {"NPY_ENABLE_CPU_FEATURES", "SOXR_USE_SIMD", "SOXR_USE_SIMD32", "DNNL_MAX_CPU_ISA"} & made.keys()


def hwcaps(level: str, tunables: str = "") -> str:
    return environment_of(level, NEW, {"GLIBC_TUNABLES": tunables})["GLIBC_TUNABLES"]


def test_glibc_loses_what_is_above_the_level_under_its_old_names_too() -> None:
    assert hwcaps("x86-64-v4") == "glibc.cpu.hwcaps=-FMA4,-FMA4_Usable"
    of_v3 = hwcaps("x86-64-v3").removeprefix("glibc.cpu.hwcaps=").split(",")
    assert {"-AVX512F", "-AVX512F_Usable", "-AVX512VL", "-FMA4"} <= set(of_v3)
    assert not {"-AVX2", "-FMA"} & set(of_v3)
    assert {"-AVX2", "-FMA", "-AVX", "-AVX2_Usable"} <= set(hwcaps("x86-64-v2").partition("=")[2].split(","))


def test_other_tunables_of_glibc_stay() -> None:
    made = hwcaps("x86-64-v4", "glibc.malloc.arena_max=2:glibc.cpu.hwcaps=-SSE4_2:glibc.malloc.check=1")
    assert made == "glibc.malloc.arena_max=2:glibc.malloc.check=1:glibc.cpu.hwcaps=-FMA4,-FMA4_Usable"


BEFORE = {"HOME": "/root", "OPENBLAS_CORETYPE": "Zen", "GLIBC_TUNABLES": "glibc.malloc.check=1"}


@pytest.mark.parametrize("level", PROCESSORS)
@pytest.mark.parametrize("other", PROCESSORS)
def test_limits_are_taken_back_or_replaced_as_if_they_had_never_been(level: str, other: str) -> None:
    limited = environment_of(level, NEW, BEFORE)
    assert level_in(limited) == level
    assert limited["HOME"] == "/root"
    assert environment_of("", NEW, limited) == BEFORE
    assert environment_of(other, NEW, limited) == environment_of(other, NEW, BEFORE)


def test_without_a_level_nothing_changes() -> None:
    assert environment_of("", NEW, BEFORE) == BEFORE
    assert level_in(BEFORE) == ""


@pytest.mark.parametrize(
    "mark",
    [
        *("", "{", "7", "[]", "null", '{"level": "x86-64-v3"}', '{"level": 1, "machine": "", "before": 3}'),
        '{"level": "x86-64-v3", "machine": "", "before": {"HOME": 5}}',
        *('{"level": 3, "machine": "", "before": {}}', '{"level": "x86-64-v3", "machine": 3, "before": {}}'),
    ],
)
def test_a_malformed_mark_is_none(mark: str) -> None:
    assert level_in({MARK: mark}) == ""
    assert environment_of("", NEW, {MARK: mark, "HOME": "/"}) == {"HOME": "/"}


def test_the_mark_says_what_was_there_before() -> None:
    mark = json.loads(environment_of("x86-64-v3", NEW, BEFORE, "this")[MARK])
    assert (mark["level"], mark["machine"]) == ("x86-64-v3", "this")
    assert machine_in(environment_of("x86-64-v3", NEW, BEFORE, "this")) == "this"
    assert mark["before"]["OPENBLAS_CORETYPE"] == "Zen"
    assert mark["before"]["SOXR_USE_SIMD64"] is None


def test_an_unknown_level_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        environment_of("x86-64-v9", NEW, {})
