"""Shared memory in huge pages: mappings are aligned, shared, and go with their last array."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from shared.huge_pages import HUGE_PAGE, collapse, map_file

SIZE = 3 * HUGE_PAGE + 4096


@pytest.fixture
def fd():
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:test")


def test_two_mappings_are_aligned_and_the_same_memory(fd):
    one, two = map_file(fd, SIZE), map_file(fd, SIZE)
    assert one.ctypes.data % HUGE_PAGE == two.ctypes.data % HUGE_PAGE == 0
    assert one.ctypes.data != two.ctypes.data
    one[::4096] = 7
    assert (two[::4096] == 7).all()
    assert os.pread(fd, 1, 4096) == b"\7"


def test_it_outlives_its_descriptor_and_goes_with_the_last_view():
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, SIZE)
    array = map_file(descriptor, SIZE)
    os.close(descriptor)
    view = array[HUGE_PAGE : HUGE_PAGE + 8].view(np.int64)
    view[0] = 5
    del array
    gc.collect()
    assert maps() == 1
    assert view[0] == 5
    del view
    gc.collect()
    assert maps() == 0


def test_address_space_is_given_back(fd):
    def in_use() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    map_file(fd, SIZE)
    before = in_use()
    for _ in range(50):
        map_file(fd, SIZE)
    assert in_use() - before < 50 * SIZE // 4096 // 10


def test_a_file_that_cannot_be_mapped_is_an_error_and_leaves_nothing():
    before = maps()
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="cannot map"):
        map_file(reading, SIZE)
    os.close(reading)
    os.close(writing)
    assert maps() == before


def test_put_together_pages_hold_what_was_written(fd):
    one, two = map_file(fd, SIZE), map_file(fd, SIZE)
    content = np.arange(SIZE, dtype=np.int64).view(np.uint8)[:SIZE]
    one[:] = content
    done = collapse(one)  # older kernels refuse: then nothing has changed
    assert (two == content).all()
    two[5] = 99
    assert one[5] == 99
    huge = sum(int(line.split()[1]) for line in Path("/proc/self/smaps").read_text().splitlines() if "ShmemPmd" in line)
    assert not done or huge * 1024 >= 3 * HUGE_PAGE


def test_less_than_a_huge_page_is_left_alone(fd):
    array = map_file(fd, SIZE)
    assert not collapse(array[4096:8192])
