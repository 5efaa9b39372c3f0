"""Record the programs whose truth is known, for the screens.

    tests/devices/simulate cuda PYTHON tests/screens/record.py [NAME...]

Each program runs where it stands, in a process of its own. Its recording is stored compressed,
without the names of this machine. Screens show what the commands print about the *same* bytes, so
record a program again only if the recording itself has to change.
"""

import gzip
import pickle
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import processes

TESTS = Path(__file__).parents[1]
RECORDINGS = Path(__file__).parent / "recordings"
OOM = "outputs/profile/oom_*/*.pickle"
EXIT = "outputs/profile/exit/*.pickle"


class Program(NamedTuple):
    """A program, how it is started, and which of its files is the recording."""

    script: str  # "corpus": the module
    arguments: tuple[str, ...]
    files: str = "recording.pickle"  # a glob; the last file by name is taken
    variables: dict[str, str] = {}  # noqa: RUF012


LEAKS = (
    *("validation_losses", "concatenated_predictions", "embedding_that_grows"),
    *("two_lists", "deque_that_fills", "queue_that_fills", "cache_that_fills", "one_long_answer"),
    *("one_long_answer_by_concatenation", "generation"),
)
CASES = ("list_of_activations", "cache_by_concatenation", "replay_buffer", "reference_cycles")
OUT_OF_MEMORY = (
    *("errors_are_kept", "accumulation_by_summing", "varying_lengths"),
    *("summaries_of_long_articles", "deep_forward", "hooks_keep_activations"),
    *("module_caches_biases", "retry_with_half_a_batch"),
    *("replay_in_a_deque", "checkpoint_on_the_device", "foreach_update"),
    *("gradients_are_kept_as_zeros", "search_that_keeps_all", "teacher_with_gradients"),
    *("adamw_first_step", "shared_card_with_a_limit", "checkpointing_is_not_enough"),
    *("failed_cell", "validation_keeps_graphs", "two_trainings_in_threads", "fails_in_backward"),
    *("old_folds_are_garbage", "sessions_of_a_server"),
    "suspended_generators",
)
VERDICTS = (
    *("fragmented", "nearly_fits", "too_large", "library", "small_library", "other_stream"),
    *("other_pool", "pinned_pages", "leaking", "survived", "cached_pool", "workspaces_of_streams"),
    *("freed_too_late", "concatenated", "streams_of_steps", "blocks_that_another_stream_uses"),
)
TRUTHS = (
    *("gpt", "scaler", "lora", "checkpoints", "ema", "own_optimizer", "static_cache"),
    *("double_backward", "fsdp2", "graphs", "vae", "retained_graph"),
)
SIZES = ("batch=2,length=64", "batch=4,length=64", "batch=4,length=192")


def programs() -> Iterator[tuple[str, Program]]:
    """Yield the name of each recording, and its program."""
    output = "recording.pickle"
    for name in LEAKS:
        yield f"leaks/{name}", Program("corpus", (name,), EXIT, {"PYTRACER": "1"})
    recorded = {"PYTRACER": "1", "SIMULATED_CAPACITY_MB": "2048", "DEVICE": "cuda"}
    for name in CASES:
        yield f"leaks/{name}_on_cuda", Program("corpus", (name,), EXIT, recorded)
    for name in OUT_OF_MEMORY:
        yield f"oom/{name}", Program("corpus", (name,), OOM, recorded)
    for name in VERDICTS:
        variables = {"OUTPUT": ".", "SIMULATED_CAPACITY_MB": "4096"}
        files = f"{name}/*/*.pickle"
        script = "accelerator/oom_programs.py"
        yield f"verdicts/{name}", Program(script, ("cuda", name), files, variables)
    for name in TRUTHS:
        variables = {"PYTRACER": "1", "SIMULATED_CAPACITY_MB": "8192"}
        yield f"owners/{name}", Program("accelerator/truth_programs.py", (name,), EXIT, variables)
    for name in ("llama", "gpt"):
        for sizes in SIZES:
            script, arguments = "accelerator/fit_programs.py", ("cuda", name, sizes, output)
            yield f"fit/{name}@{sizes}", Program(script, arguments)
    for name in ("varying_lengths", "transformer"):
        arguments = ("cuda", name, ".", f'[["", {1 << 34}]]')
        script, files = "accelerator/recorded_programs.py", "recorded.pickle"
        yield f"fragmentation/{name}", Program(script, arguments, files)


def record(name: str, program: Program) -> None:
    """Run a program, and store its recording."""
    with tempfile.TemporaryDirectory() as folder:
        environment = processes.environment(**program.variables)
        script = ("-m", "corpus") if program.script == "corpus" else (TESTS / program.script,)
        done = processes.run_python(*script, *program.arguments, cwd=Path(folder), env=environment)
        files = sorted(Path(folder).glob(program.files))
        if not files:
            raise SystemExit(f"{name} left no {program.files}:\n{done.stdout}{done.stderr}")
        content = pickle.loads(files[-1].read_bytes())
        changes = {
            folder: "/job",
            f"{TESTS}/": "/job/",
            sysconfig.get_path("purelib"): "/site-packages",
            sysconfig.get_path("stdlib"): "/python",
        }
    path = RECORDINGS / f"{name}.pickle.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = pickle.dumps(_without_names(content, changes), protocol=4)
    path.write_bytes(gzip.compress(packed, 9, mtime=0))
    print(f"{path.stat().st_size:9,}  {name}", flush=True)


def _without_names(content: dict[str, Any], changes: dict[str, str]) -> dict[str, Any]:
    """Return the content with other names of folders and of the host; what is shared stays so."""
    host = content["pytracer"].get("host")
    changes = {**changes, **({host: "example"} if host else {})}
    pattern = re.compile("|".join(map(re.escape, sorted(changes, key=len, reverse=True))))
    done: dict[int, Any] = {}

    def renamed(value: Any) -> Any:
        if id(value) in done:
            return done[id(value)]
        new = value
        if isinstance(value, str):
            new = pattern.sub(lambda match: changes[match.group()], value)
        elif isinstance(value, dict):
            new = {renamed(key): renamed(each) for key, each in value.items()}
        elif isinstance(value, (list, tuple)):
            new = type(value)(map(renamed, value))
        done[id(value)] = new
        return new

    return renamed(content)


if __name__ == "__main__":
    for name, program in programs():
        if any(part in name for part in sys.argv[1:] or [""]):
            record(name, program)
