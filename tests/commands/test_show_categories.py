"""Tests of the categories and modules that `pytracer show --all` prints."""

import pickle
from pathlib import Path

import torch
from click.testing import CliRunner
from torch import nn

import pytracer
from pytracer.analysis import explain, stats
from pytracer.commands.main import main
from pytracer.reading import load
from pytracer.text import size

GOLDEN = Path(__file__).parents[1] / "golden"


def output_of(path: Path) -> str:
    result = CliRunner().invoke(main, ["show", "--all", str(path)], env={"COLUMNS": "100"})
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
    text = output_of(path)
    # THEN the categories, their bytes and shares, and their largest tensors are in a table
    assert "What memory was for at the end" in text
    (line,) = (line for line in text.splitlines() if "│ parameter;" in line)
    assert "4 MiB" in line
    assert "[red]large" in line
    assert "80%" in line
    (line,) = (line for line in text.splitlines() if "│ buffer;" in line)
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
    text = " ".join(output_of(path).split())
    # THEN the share of that block is shown, and all that is not known is said
    assert "What memory was for at the peak" in text
    assert "│ 4 MiB │ 80% │ 1 │ unknown │" in text
    assert "The gradients of 2 parameters are unknown" in text
    assert "Start the tracer before the model is made" in text
    assert model.in_features == 512


def test_memory_of_an_unfinished_first_step(tmp_path: Path) -> None:
    # GIVEN a file from the middle of the first forward pass
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 256))
        batch = torch.ones(1024, 64)
        output = model(batch)
        tracer.dump(path)
    # WHEN it is reported, THEN the unknown blocks that modules allocated are added up
    text = " ".join(output_of(path).split())
    assert output.shape == (1024, 256)
    assert "1 MiB of the unknown blocks at the peak were allocated by modules" in text
    (explanation,) = explain(load(path))
    found = {usage.category: usage.forward_bytes for usage in explanation.categories}
    assert found == {"unknown": 1024 * 256 * 4, "activation": 0, "parameter": 0}


def test_the_answer_says_what_memory_was_for(tmp_path: Path) -> None:
    # GIVEN a training with momentum, whose modules are phases
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu", forward_stacks=True):
        model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 16))
        optimizer = torch.optim.AdamW(model.parameters())
        with pytracer.annotate_modules(model):
            for _ in range(3):
                model(torch.ones(512, 256)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    (device,) = stats(load(path)).devices
    by_category, by_module = (device.held_by(by, "peak") for by in ("category", "module"))
    assert by_category is not None
    assert by_module is not None
    sizes = {str(group.category): group.size_bytes for group in by_category.groups}
    # THEN the first lines have the categories, the largest module, and what remedies save
    answer = " ".join(output_of(path).split())
    for category, word in (("activation", "activations"), ("optimizer_state", "optimizer states")):
        assert f" {word} {size(sizes[category])}" in answer
    most = next(group for group in by_module.groups if group.module)
    assert f"modules {size(most.size_bytes)} {most.module} " in answer
    of_batch = sum(sizes[each] for each in ("activation", "temporary", "input") if each in sizes)
    assert (
        f"By estimate, half the batch saves {size(of_batch // 2)}, checkpointing up to "
        f"{size(sizes['activation'])}, an 8-bit or sharded optimizer "
        f"{size(sizes['optimizer_state'] * 3 // 4)}."
    ) in answer
    # AND the modules are in one table: no table of phases repeats them
    text = output_of(path)
    assert "Modules that held memory at the peak" in text
    assert "Phases" not in text


def test_the_table_of_phases_leaves_out_the_modules(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    with pytracer.Tracer(path, device="cpu"):
        model = nn.Sequential(nn.Linear(256, 1024))
        with pytracer.annotate_modules(model), pytracer.annotate("loading"):
            batch = torch.ones(512, 256)
            kept = model(batch)
    assert kept.shape == (512, 1024)
    table = output_of(path).split("Phases other than calls of modules")[1]
    assert "loading" in table
    assert "Sequential" not in table
    assert "│ 0 " not in table
