"""Tests of the table of categories that `pytracer stats` prints."""

import pickle
from pathlib import Path

import torch
from click.testing import CliRunner
from torch import nn

import pytracer
from pytracer.commands.main import main

GOLDEN = Path(__file__).parents[1] / "golden"


def output(path: Path) -> str:
    result = CliRunner().invoke(main, ["stats", str(path)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_table_of_categories(tmp_path: Path) -> None:
    # GIVEN a model with a large layer, whose name looks like markup
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu"):
        model = nn.Module()
        model.register_parameter("[red]large", nn.Parameter(torch.ones(2**20)))
        model.register_buffer("small", torch.ones(2**18))
    # WHEN the file is reported
    text = output(path)
    # THEN the categories, their bytes and shares, and their largest tensors are in a table
    assert "What memory was for at the end" in text
    (line,) = (line for line in text.splitlines() if "parameter" in line)
    assert "4 MiB" in line
    assert "[red]large" in line
    assert "80%" in line
    (line,) = (line for line in text.splitlines() if "buffer" in line)
    assert "20%" in line


def test_the_peak_says_what_is_not_known(tmp_path: Path) -> None:
    # GIVEN a file whose peak has a block of which no fact is known, and unread gradients
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu"):
        model = nn.Linear(512, 512)
        torch.ones(2**20)
    content = pickle.loads(path.read_bytes())
    content["pytracer"]["tensors"] |= {"unread_gradients": 2, "all_modules_found": False}
    path.write_bytes(pickle.dumps(content, protocol=4))
    # WHEN the file is reported
    text = " ".join(output(path).split())
    # THEN the share of that block is shown, and all that is not known is said
    assert "What memory was for at the peak" in text
    assert "unknown │ 4 MiB │ 80%" in text
    assert "The gradients of 2 parameters are unknown" in text
    assert "Start the tracer before the model is made" in text
    assert model.in_features == 512


def test_files_without_categories_have_no_table() -> None:
    assert "What memory was for" not in output(GOLDEN / "snapshot-1.4-cpu.pickle")
