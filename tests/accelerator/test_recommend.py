"""Compare recommendations with the program under the recommended settings."""

from pathlib import Path

import processes
import pytest
import simulated
from amount import amount

from pytracer.analysis import explain
from pytracer.analysis.oom.reasons import EXHAUSTED
from pytracer.reading import load
from pytracer.recommendation import recommend
from pytracer.simulator.trials import TRIED, try_settings
from pytracer.variables import format_settings

HERE = Path(__file__).parent
OOM_PROGRAMS = HERE / "oom_programs.py"
CAPACITY_MIB = 4 << 10

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="needs a device of a chosen capacity"
)


def variable(backend: str) -> str:
    return f"PYTORCH_{backend.upper()}_ALLOC_CONF"


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
    seeds = range(200, amount(208, 224))
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
        explanation = explain(load(path), try_settings=try_settings)[0]
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
        # AND the first is the first command, if the program does not need more than there is, nor
        # keeps nearly all in one object
        commands = [one.command for one in explanation.suggestions if one.command]
        is_kept = any(one.why.startswith("Look at") for one in explanation.suggestions)
        if [verdict.kind for verdict in explanation.verdicts] == [EXHAUSTED]:
            oom = explanation.oom
            assert oom is not None
            assert oom.sample is not None
            missing_bytes = (
                oom.sample.allocated_bytes + oom.requested_bytes - oom.most_reserved_bytes
            )
            needs_more = missing_bytes > 0 or is_kept
            assert commands == ([] if needs_more else [f"pytracer recommend {path}"])
            assert missing_bytes <= 0 or not later  # no setting would have helped
        elif named:
            assert commands[0].endswith(explanation.fitting_settings[0])
    assert judged > len(seeds) // 2
