"""Test which steps and modules are alike."""

from pytracer.analysis.alike_rows import alike_modules, alike_names, alike_runs, ranges_text

MIB = 2**20


def test_consecutive_steps_are_alike() -> None:
    values = [(1, 500), (2, 1000), (3, 1005), (4, 1010), (5, 1011), (7, 1010), (8, 1010)]
    # THEN a run ends where its highest peak is more than 1 % above its lowest, or a step is missing
    assert alike_runs(values) == [[0], [1, 2, 3], [4], [5, 6]]
    assert alike_runs([]) == []


def test_modules_are_alike_by_their_numbers_and_sizes() -> None:
    values = [("blocks.0.mlp", 100), ("blocks.1.mlp", 95), ("blocks.2.mlp", 80), ("head", 300)]
    values += [("backward of blocks.0.mlp", 7), ("layer1", 6), ("layer2", 6)]
    found = {name: [values[row][0] for row in rows] for name, rows in alike_names(values)}
    # THEN those of other sizes and other paths stay apart, as do numbers inside of a word
    assert found == {
        "blocks.*.mlp": ["blocks.0.mlp", "blocks.1.mlp"],
        "blocks.2.mlp": ["blocks.2.mlp"],
        "head": ["head"],
        "backward of blocks.0.mlp": ["backward of blocks.0.mlp"],
        "layer1": ["layer1"],
        "layer2": ["layer2"],
    }
    # AND the largest sum comes first
    first, second, *_ = alike_modules(values)
    assert (first.name, first.size_bytes, first.modules) == ("head", 300, 1)
    assert (second.name, second.modules) == ("blocks.*.mlp", 2)
    assert (second.size_bytes, second.least_bytes, second.most_bytes) == (195, 95, 100)


def test_ranges_of_ranks() -> None:
    assert ranges_text([7, 0, 1, 2, 4, 6, 6]) == "0-2, 4, 6-7"
