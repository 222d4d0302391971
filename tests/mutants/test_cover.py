"""Which files of tests are measured: all, or for some modules those that are near them."""

import pytest

from tests.mutants.cover import files_of_tests

FILES = {
    "tests/toy/wire/test_gate.py": "",
    "tests/toy/wire/test_fence.py": "",
    "tests/toy/test_house.py": "from toy.wire.gate import enter\n",
    "tests/toy/test_yard.py": "from toy.wire import fence, gate\n",
    "tests/toy/test_roof.py": "from toy.wire.gatehouse import enter\n",
    "tests/faults/test_burglar.py": "from toy.wire.gate import enter\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_all_but_those_that_run_the_code_elsewhere(root):
    assert files_of_tests(root) == sorted(name for name in FILES if "faults" not in name)


def test_of_a_module_those_of_its_own_folder_and_those_that_import_it(root):
    near = ["tests/toy/test_house.py", "tests/toy/test_yard.py"]
    assert files_of_tests(root, {"toy/wire/gate.py"}) == [*near, *sorted(name for name in FILES if "/wire/" in name)]


def test_of_several_modules_what_is_near_any_of_them(root):
    assert files_of_tests(root, {"toy/roof.py", "elsewhere.py"}) == [
        name for name in sorted(FILES) if "/toy/test" in name
    ]
    assert files_of_tests(root, {"elsewhere.py"}) == []
