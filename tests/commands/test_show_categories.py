"""Tests of the categories and modules that `pytracer show --all` prints."""

import pickle
from pathlib import Path

import torch
from click.testing import CliRunner
from torch import nn

import pytracer
from pytracer.commands.main import main


def output_of(path: Path) -> str:
    result = CliRunner().invoke(main, ["show", "--all", str(path)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


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
    text = " ".join(output_of(path).split())
    # THEN the share of that block is shown, and all that is not known is said
    assert "What memory was for at the peak" in text
    assert "│ 4 MiB │ 80% │ 1 │ unknown │" in text
    assert "The gradients of 2 parameters are unknown" in text
    assert "Start the tracer before the model is made" in text
    assert model.in_features == 512
