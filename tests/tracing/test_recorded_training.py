"""Do viewers accept the recording of a training, and does it have all tensors?"""

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import viewed_pickles
import viewers
from cpu_events import block, blocks_of, counts, frames_of
from torch import Tensor, nn
from torch.cuda import _memory_viz

from pytracer import Tracer

pytestmark = pytest.mark.usefixtures("no_collector")


class Model(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.layer(self.embedding(tokens)))


@dataclass
class Training:
    """A traced training, with its model and its file."""

    path: Path
    tracer: Tracer
    model: Model
    optimizer: torch.optim.Optimizer

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    path = tmp_path_factory.mktemp("training") / "snapshot.pickle"
    with Tracer(path, metadata={"run": 7, "rates": [0.1, 0.2]}) as tracer:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(8):
            tokens = torch.randint(50, (4, 17))
            scores = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Training(path, tracer, model, optimizer)


def test_viewers_accept_a_training(training: Training) -> None:
    pickled = viewed_pickles.check_opcodes(training.data)
    viewers.check_snapshot(pickled.root)
    viewers.check_snapshot(training.tracer.snapshot())


def test_every_part_is_written_once(training: Training) -> None:
    repeated = viewed_pickles.check_opcodes(training.data).repeated()
    # The metadata has the names of the program's files again, and each step begins and ends.
    content = pickle.loads(training.data)
    sources = content["pytracer"]["source_lines"]
    assert __file__ in sources
    steps = {each["name"] for each in content["external_annotations"]}
    assert "step 8" in steps
    assert [text for text in repeated if text not in {*sources, *steps}] == []


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("stats", (), "total_allocated: "),
        ("trace", (), "Device 0 ----------------\n"),
        ("trace_plot", (), "Active Memory Timeline"),
        ("segment_plot", (), "Allocator State History"),
        ("memory", (), "test_recorded_training.py:"),
        ("segments", (), "test_recorded_training.py:"),
    ],
)
def test_torchs_viewer_opens_it(
    training: Training, tmp_path: Path, command: str, options: tuple[str, ...], expected: str
) -> None:
    output = None if command in {"stats", "trace"} else tmp_path / "out"
    text = viewers.run_memory_viz(training.path, command, *options, output=output)
    assert expected in text


def test_segsum(training: Training) -> None:
    # GIVEN the blocks of the training
    snapshot = training.tracer.snapshot()
    held = sum(segment["total_size"] for segment in snapshot["segments"])
    # WHEN torch sums up the segments, THEN all of their memory is in use
    lines = _memory_viz.segsum(snapshot).splitlines()
    assert f"total_reserved: {_memory_viz.Bytes(held)}" in lines
    assert f"total_allocated: {_memory_viz.Bytes(held)}" in lines


def test_the_tensors_of_a_training_are_in_the_snapshot(training: Training) -> None:
    # GIVEN parameters, gradients and the optimizer's state
    parameters = list(training.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [
        value
        for state in training.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    # WHEN their blocks are looked up in the snapshot
    blocks = blocks_of(training.tracer.snapshot())
    # THEN each is found, with a stack of the training
    assert len(parameters) == len(gradients) == len(states) / 3 == 15
    for tensor in (*parameters, *gradients, *states):
        assert ("training", __file__) in [
            (name, filename) for filename, name, _ in blocks[block(tensor)]
        ]


def test_the_file_is_the_dict(training: Training) -> None:
    # GIVEN the file, and a dictionary that was made later
    written, snapshot = pickle.loads(training.data), training.tracer.snapshot()
    # WHEN they are compared, THEN only their times differ
    assert written["pytracer"].pop("written_ns") < snapshot["pytracer"].pop("written_ns")
    assert written == snapshot
    # AND the metadata describes the recording
    about = snapshot["pytracer"]
    assert about["metadata"] == {"run": 7, "rates": [0.1, 0.2]}
    assert about["torch"] == torch.__version__
    assert (about["context"], about["stack_depth"]) == ("all", 32)
    assert about["devices"][0]["recorded"] == counts(training.tracer)["recorded"]


def test_a_pickled_dict_is_as_small_as_the_file(training: Training) -> None:
    # GIVEN the dictionary of a snapshot
    snapshot = training.tracer.snapshot()
    holders = [*snapshot["segments"], *snapshot["device_traces"][0]]
    # WHEN it is pickled as torch pickles its own
    size = len(pickle.dumps(snapshot, protocol=4))
    # THEN its size is close to the file's, because equal lists of frames are one list
    lists = {id(holder["frames"]): holder["frames"] for holder in holders}
    distinct = {tuple(frames_of(frames)) for frames in lists.values()}
    assert len(distinct) <= len(lists) < len(holders) / 10
    assert 0.5 < size / len(training.data) < 2


def test_the_file_names_the_folder_of_torchs_frames(training: Training) -> None:
    # GIVEN the folders of torch's packages that the file names
    content = pickle.loads(training.data)
    folders = content["pytracer"]["torch_folders"]
    # THEN the first is torch's, and the frames of torch's modules are in it
    assert folders[0] == str(Path(torch.__file__).parent)
    frames = [frame for event in content["device_traces"][0] for frame in event["frames"]]
    assert f"{folders[0]}/nn/modules/linear.py" in {frame["filename"] for frame in frames}
