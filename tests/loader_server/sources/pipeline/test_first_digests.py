from loader_server.sources.pipeline.first_digests import FirstDigests


def test_the_first_to_make_an_element_decides_for_all(tmp_path):
    one, other = (FirstDigests(tmp_path / "made", "job") for _ in range(2))
    assert one.first(3, 1, 5, 77) == 77
    assert other.first(3, 1, 5, 78) == 77
    assert [other.first(3, 1, ordinal, 9) for ordinal in (4, 6)] == [9, 9]
    assert other.first(3, 0, 5, 8) == other.first(4, 1, 5, 8) == 8
    assert FirstDigests(tmp_path / "made", "other job").first(3, 1, 5, 80) == 80


def test_the_newest_epochs_are_kept(tmp_path):
    digests = FirstDigests(tmp_path / "made", "job")
    FirstDigests(tmp_path / "made", "what the job was before").first(0, 0, 0, 1)
    for epoch in range(9):
        digests.first(epoch, 0, 0, 50 + epoch)
    assert digests.first(8, 0, 0, 1) == 58
    names = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert names == [f"job-{epoch}-0" for epoch in range(4, 9)]


def test_a_folder_that_cannot_be_written_costs_the_check(tmp_path, caplog):
    (tmp_path / "made").touch()
    digests = FirstDigests(tmp_path / "made", "job")
    assert [digests.first(0, 0, 0, digest) for digest in (5, 6)] == [5, 6]
    assert caplog.text.count("elements are not compared") == 1
