"""Compare what the simulator says of other settings with the program under these settings."""

import json
from pathlib import Path
from typing import Any

import processes
import pytest
import simulated
from commands import invoke

from pytracer.experiments.replay import replay
from pytracer.reading import load
from pytracer.recommendation import recommend
from pytracer.recommendation.fitting import TRIED, explain_with_settings
from pytracer.recommendation.verify import verified
from pytracer.settings.keys import format_settings

HERE = Path(__file__).parent
OOM_PROGRAMS = HERE / "oom_programs.py"
CAPACITY_MIB = 4 << 10

pytestmark = [
    pytest.mark.once_per_backend,
    pytest.mark.skipif(not simulated.active(), reason="needs a device of a chosen capacity"),
]


def variable(backend: str) -> str:
    return f"PYTORCH_{backend.upper()}_ALLOC_CONF"


# Layers whose activations grow and shrink with the sequence, as in a training of a transformer.
LOOP = """
import json, sys
import torch
backend, path = sys.argv[1:3]
if backend == "npu":
    import torch_npu
import pytracer

api = getattr(torch, backend)
api.init()
MIB = 1 << 20


def make(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=f"{backend}:0")


def step(length):
    activations = []
    for layer in range(12):
        hidden = make(length * 8)
        attention = make(length * length / 40)
        activations.append((hidden, make(length * 21)))
        del attention
    logits = make(length * 90)
    for hidden, inner in reversed(activations):
        gradient = make(length * 8.5)
        activations.pop()
        del hidden, inner
    del logits, gradient


oom = False
with pytracer.Tracer(path, device=backend, context=None, on_oom=False) as tracer:
    weights = [make(30 + i % 3) for i in range(12)]
    try:
        for length in (5, 8, 5.5, 7.3, 6.1, 8, 4.4, 7.7):
            step(length)
    except torch.OutOfMemoryError:
        oom = True
    tracer.dump(path)
stats = api.memory_stats(0)
names = {"reserved": "reserved_bytes.all.peak", "retries": "num_alloc_retries"}
print(json.dumps({"oom": oom, **{name: stats[key] for name, key in names.items()}}))
"""

SETTINGS = {
    "cuda": (
        "",
        "expandable_segments:True",
        "max_split_size_mb:64",
        "roundup_power2_divisions:4",
        "expandable_segments:True,roundup_power2_divisions:8",
    ),
    "npu": ("", "expandable_segments:True", "max_split_size_mb:64"),
}


def run_loop(folder: Path, backend: str, settings: str, capacity_mib: int) -> dict[str, Any]:
    """Run the loop, which writes `folder`/recorded.pickle, and return its figures."""
    folder.mkdir()
    more = {variable(backend): settings} if settings else {}
    env = processes.environment(SIMULATED_CAPACITY_MB=str(capacity_mib), **more)
    done = processes.run(LOOP, backend, "recorded.pickle", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_a_loop_of_varying_lengths(backend: str, tmp_path: Path) -> None:
    # GIVEN a recording with more memory than needed, and the program itself under other settings,
    # on devices where only some settings fit
    run_loop(tmp_path / "recording", backend, "", 16 << 10)
    path = tmp_path / "recording" / "recorded.pickle"
    outcomes = []
    for capacity_mib in (16 << 10, 4_850, 4_500):
        for i, settings in enumerate(SETTINGS[backend]):
            program = run_loop(tmp_path / f"{capacity_mib}-{i}", backend, settings, capacity_mib)
            # WHEN the recording is simulated under the same settings and capacity
            done = replay(path, [settings] if settings else [], capacity_bytes=capacity_mib << 20)
            assert done.deviation is not None
            assert done.deviation.equal == done.deviation.requests > 300
            outcome = done.replayed[-1].setting.outcomes[0]
            # THEN it runs out of memory where the program does, and reserves the same
            assert (outcome.ooms == 1) == program["oom"], (settings, capacity_mib)
            assert outcome.peak_reserved_bytes == program["reserved"], (settings, capacity_mib)
            assert outcome.retries == program["retries"], (settings, capacity_mib)
            outcomes.append((program["oom"], program["retries"] > 0))
    # AND the settings differ
    assert {(False, False), (True, True)} <= set(outcomes)


def test_the_recommendation_is_confirmed_by_the_program(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that runs out of memory by fragmentation
    traced = {"OUTPUT": str(tmp_path), "SIMULATED_CAPACITY_MB": str(CAPACITY_MIB)}
    assert run_programs(backend, tmp_path, "fragmented", **traced) == {"fragmented": "failed"}
    (path,) = tmp_path.glob("fragmented/oom_*/*.pickle")
    # WHEN settings are recommended for it
    found = recommend(path)
    # THEN the line to paste lets it pass
    assert found.kind == "change"
    assert found.recommended is not None
    assert not found.own.fits
    name, _, settings = found.command.removeprefix("export ").partition("=")
    assert settings == found.recommended.settings
    more = {name: settings, "SIMULATED_CAPACITY_MB": str(CAPACITY_MIB)}
    assert run_programs(backend, tmp_path, "fragmented", **more) == {"fragmented": "passed"}
    # AND the smallest device is that: with a little more it passes, with a little less it fails
    least = found.recommended.smallest_device_bytes
    assert least is not None
    for capacity_mib, result in ((least >> 20) + 1, "passed"), ((least >> 20) - 12, "failed"):
        more["SIMULATED_CAPACITY_MB"] = str(capacity_mib)
        assert run_programs(backend, tmp_path, "fragmented", **more) == {"fragmented": result}
    # AND the real allocator verifies the recommendation
    done = verified(found)
    assert done.verification is not None
    assert done.verification.failure is None
    assert done.verification.ooms == 0


def test_a_program_that_is_too_large(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that needs more than the device has
    traced = {"OUTPUT": str(tmp_path), "SIMULATED_CAPACITY_MB": str(CAPACITY_MIB)}
    run_programs(backend, tmp_path, "too_large", **traced)
    (path,) = tmp_path.glob("too_large/oom_*/*.pickle")
    # THEN no setting is recommended, and the command says what is needed
    found = recommend(path)
    assert (found.kind, found.command) == ("too large", "")
    # The event of the failed allocation has the size as the allocator rounded it.
    assert 0 <= found.needed_bytes - (5000 << 20) < 512
    done = invoke("recommend", path)
    assert done.exit_code == 0
    assert done.stdout.startswith("No setting helps: the program needs 4.883 GiB")


def run_programs(backend: str, folder: Path, *names: object, **more: str) -> dict[str, str]:
    """Run programs of oom_programs.py in a process, and return the result of each."""
    done = processes.run_python(
        OOM_PROGRAMS, backend, *names, cwd=folder, env=processes.environment(**more)
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
def test_explanations_name_the_settings_that_fit(backend: str, tmp_path: Path) -> None:
    # GIVEN programs that allocate and free at random until memory runs out
    seeds = range(200, 224)
    capacity = {"SIMULATED_CAPACITY_MB": str(CAPACITY_MIB)}
    run_programs(backend, tmp_path, *seeds, OUTPUT=str(tmp_path), **capacity)
    numbers = {
        format_settings(choice): run_programs(
            backend, tmp_path, *seeds, **{variable(backend): format_settings(choice)}, **capacity
        )
        for choice in TRIED
        if backend == "cuda" or "roundup_power2_divisions" not in choice
    }
    recorded = run_programs(backend, tmp_path, *seeds, **capacity)
    judged = 0
    for seed in map(str, seeds):
        (path,) = tmp_path.glob(f"{seed}/oom_*/*.pickle")
        explanation = explain_with_settings(load(path))[0]
        if explanation.fitting_settings is None:
            continue
        judged += 1
        # THEN the same program passes the allocation that failed exactly under the named settings
        later = [
            name
            for name, results in numbers.items()
            if int(results[seed]) < 0 or int(results[seed]) > int(recorded[seed])
        ]
        named = [name for name in explanation.fitting_settings if name in numbers]
        assert named == later, seed
        # AND the first is the first command
        if named:
            assert explanation.suggestions[0].command.endswith(explanation.fitting_settings[0])
    assert judged > len(seeds) // 2


def test_a_real_replay_without_nvml(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a container where NVML does not answer, but torch finds the device
    run_loop(tmp_path / "recording", backend, "", 16 << 10)
    monkeypatch.setenv("SIMULATED_NVML", "0")
    # THEN the real allocator answers
    done = replay(tmp_path / "recording" / "recorded.pickle", [], real=True)
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests
