"""Check how the published viewers read phases and steps, with the viewers' own code.

`make test-viewers` fetches the code: facebookresearch/mosaic, and memory_viz's
`process_alloc_data.js` from pytorch/pytorch. They need pandas and node.
"""

import json
import os
import pickle
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pytracer

MEMORY_VIZ = os.environ.get("MEMORY_VIZ_JS", "")

MEMORY_VIZ_PROGRAM = """
const fs = require('fs');
const code = fs.readFileSync(process.argv[1], 'utf8').replace(/^export [^;]*;/m, '');
const process_alloc_data = new Function(code + '; return process_alloc_data;')();
const snapshot = JSON.parse(fs.readFileSync(0, 'utf8'));
snapshot.categories = [];
const data = process_alloc_data(snapshot, 0, false, 1000);
for (let i = 0; i < data.elements_length; ++i) console.log(JSON.stringify(data.context_for_id(i)));
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a snapshot of two steps with phases; every phase leaves a block of its own size."""
    path = tmp_path / "x.pickle"
    kept = []

    def work(phase: str, size: int) -> None:
        pause()
        with pytracer.annotate(phase):
            pause()
            kept.append(torch.empty(size, dtype=torch.uint8))
            torch.empty(7)
            pause()
        pause()

    with pytracer.Tracer(path, device="cpu") as tracer:
        for size in (1_000, 2_000):
            work("rollout", size)
            with pytracer.annotate("update"):
                work("forward", 10 * size)
                kept.append(torch.empty(100 * size, dtype=torch.uint8))
            pause()
            tracer.step()
            pause()
        kept.append(torch.empty(3, dtype=torch.uint8))
    return path


def pause() -> None:
    """Sleep, because times are in microseconds and consecutive events must have different times."""
    time.sleep(1e-4)


def test_mosaics_annotation_profile(path: Path) -> None:
    # GIVEN mosaic
    abstract = pytest.importorskip(
        "mosaic.libmosaic.analyzer.memory_abstract", reason="make test-viewers fetches mosaic"
    )
    memory = abstract.MemoryAbstract(memory_snapshot_file=str(path))
    memory.load_memory_snapshot()
    snapshot = memory.memory_snapshot
    # WHEN mosaic computes the usage at each begin and end, THEN the usage is right
    stages = snapshot.get_memory_usage_by_annotation_stage(set())
    usage_bytes = {name: round(bytes_) for name, (_, bytes_) in stages.items()}
    assert usage_bytes == {
        "step 1_START": 0,
        "rollout_START": 0,
        "rollout_END": 1_000,
        "update_START": 1_000,
        "forward_START": 1_000,
        "forward_END": 11_000,
        "update_END": 111_000,
        "step 1_END": 111_000,
        "step 2_START": 111_000,
        "rollout_START(1)": 111_000,
        "rollout_END(1)": 113_000,
        "update_START(1)": 113_000,
        "forward_START(1)": 113_000,
        "forward_END(1)": 133_000,
        "update_END(1)": 333_000,
        "step 2_END": 333_000,
        "step 3_START": 333_000,
    }
    # WHEN mosaic attributes the memory, THEN each block belongs to its innermost phase or its step
    snapshot.analyze_memory_snapshot(opt="alloc_history", profile_types=["annotations"])
    usage = list(snapshot.memory_usage_history.values())[-1].per_annotation_alloc_sum
    assert {name: size for name, size in usage.items() if size} == {
        "rollout": 3_000,
        "forward": 30_000,
        "update": 300_000,
        "step 3": 3,
    }


def test_memory_vizs_user_metadata(path: Path) -> None:
    # GIVEN memory_viz's own reading of a trace
    if not MEMORY_VIZ or shutil.which("node") is None:
        pytest.skip("make test-viewers fetches memory_viz, which node runs")
    # WHEN memory_viz describes each allocation
    done = subprocess.run(
        ["node", "-e", MEMORY_VIZ_PROGRAM, MEMORY_VIZ],
        input=as_json(path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # THEN the description includes the phase
    texts = done.stdout.splitlines()
    for size, phase in {"1000": "rollout", "20000": "forward", "200000": "update"}.items():
        (text,) = [text for text in texts if f"({size} bytes)" in text]
        assert f"User Metadata:\\n  {phase}" in text
    (text,) = [text for text in texts if "(3 bytes)" in text]
    assert "User Metadata" not in text


def as_json(path: Path) -> str:
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    return json.dumps(snapshot)
