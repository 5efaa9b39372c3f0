"""Test the answers of `pytracer show` about jobs that run out of memory for a known reason.

The programs are those of oom_cases.py, under the default options. The oracle is how each was made,
and that it passes if it does what would help.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import processes
import pytest
from amount import LONG

from pytracer.analysis import explain
from pytracer.analysis.answer import Answer
from pytracer.analysis.answer_words import REASONS, answer_of
from pytracer.analysis.oom.reasons import (
    EXCEPTION,
    EXHAUSTED,
    FRAGMENTED,
    GARBAGE,
    KEPT_GROWING,
    LARGER_INPUT,
    LEAK,
    LIMIT,
    OTHERS,
    TOO_LARGE,
    UNKNOWN,
)
from pytracer.reading import load
from pytracer.simulator.trials import try_settings

PROGRAM = Path(__file__).parent / "oom_cases.py"
CAPACITY_MIB = 2 << 10

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated_device")]


@dataclass(frozen=True)
class Case:
    """What is true of a program."""

    kinds: tuple[str, ...]  # the verdicts that are right as the first one
    holder: str  # a part of the name of what keeps the memory; "": nothing keeps it too long
    advice: str  # a part of what to do
    more: dict[str, str] = field(default_factory=dict)  # variables that the program needs
    which: int = -1  # which of its errors; a retry fails for another reason than the first try
    # What makes the program pass.
    helped: dict[str, str] = field(default_factory=lambda: {"REMEDY": "1"})


EXPANDS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

CASES = {
    "trainer_logs_gradients": Case((LEAK,), "self.logs['grads'][…]", "Look at self.logs['grads']"),
    "errors_are_kept": Case((EXCEPTION, LEAK), "failures[…] of errors_are_kept()", "failures[…]"),
    "accumulation_by_summing": Case(
        (EXHAUSTED,), "losses[…] of accumulation_by_summing()", "Look at losses[…]"
    ),
    "varying_lengths": Case(
        (FRAGMENTED,), "window (inside a deque", "expandable_segments:True", helped=EXPANDS
    ),
    "summaries_of_long_articles": Case((LARGER_INPUT,), "", "Limit the size of one step's input"),
    "deep_forward": Case(
        (EXHAUSTED,), "", "1/12 of this batch fits, checkpointing saves", helped={"PART": "12"}
    ),
    "running_loss": Case((LEAK,), "running of running_loss()", "Look at running"),
    "hooks_keep_activations": Case((LEAK,), "features[…]", "Look at features"),
    "masks_in_lru_cache": Case((LEAK,), "causal_mask (inside a _lru", "Look at causal_mask"),
    "memo_in_a_closure": Case((LEAK,), "teach.__closure__", "Look at teach.__closure__"),
    "module_caches_biases": Case((LEAK,), "bias_cache[…]", "bias_cache[…]"),
    "retry_with_half_a_batch": Case(
        (EXCEPTION,), "which the traceback of the handled exception keeps", "outside of `except`"
    ),
    "replay_in_a_deque": Case((LEAK,), "memory (inside a deque, ", "keep fewer items"),
    "checkpoint_on_the_device": Case((EXHAUSTED,), "state['model'][…]", "Load the checkpoint with"),
    "foreach_update": Case((EXHAUSTED,), "", "with fused=True or foreach=False"),
    "gradients_are_kept_as_zeros": Case((EXHAUSTED,), "", "464.4 MiB of gradients of the step"),
    "search_that_keeps_all": Case(
        (EXHAUSTED,), "trials[…]", "of models and optimizers: drop those that are not used any more"
    ),
    "teacher_with_gradients": Case((EXHAUSTED,), "", "call GPT#2.requires_grad_(False)"),
    "adamw_first_step": Case((EXHAUSTED,), "", "an 8-bit or sharded optimizer saves"),
    "shared_card_with_a_limit": Case((LIMIT,), "", "set_per_process_memory_fraction. Sim"),
    "neighbour_on_the_card": Case(
        (OTHERS,),
        "",
        "nvidia-smi",
        more={"SIMULATED_OTHERS_MB": "1200"},
        helped={"SIMULATED_OTHERS_MB": "0"},
    ),
    "expandable_and_too_large": Case(
        (LARGER_INPUT, EXHAUSTED), "", "Limit the size of one step's input", more=EXPANDS
    ),
    "checkpointing_is_not_enough": Case(
        (TOO_LARGE, EXHAUSTED),
        "scores of loss_of()",
        "Compute the loss in parts",
        helped={"PART": "8"},
    ),
    "failed_cell": Case(
        (EXCEPTION,), "attempt(), which the last uncaught exception keeps", "Run a cell that fails"
    ),
    "validation_keeps_graphs": Case((LARGER_INPUT, EXHAUSTED), "", "call it under torch.no_grad()"),
    "two_trainings_in_threads": Case((EXHAUSTED, UNKNOWN), "", "half the batch saves", which=0),
    "fails_in_backward": Case((FRAGMENTED,), "", "expandable_segments:True", helped=EXPANDS),
    "gan_keeps_samples": Case((LEAK,), "gallery[…]", "Look at gallery[…]"),
    "snapshots_of_weights": Case((LEAK,), "history[…]", "Look at history[…]"),
    "old_folds_are_garbage": Case((LEAK, GARBAGE), "a reference cycle of ", "gc.collect()"),
    "sessions_of_a_server": Case((KEPT_GROWING,), "server.sessions[…]", "Look at server.sessions"),
    "suspended_generators": Case((EXHAUSTED, UNKNOWN), "streams[…]", "Look at streams[…]"),
    "hidden_state_is_not_detached": Case(
        (EXHAUSTED,), "hidden of hidden_state_is_not_detached()", "Look at hidden"
    ),
    "reinforce_never_clears": Case((LEAK,), "log_probs[…]", "log_probs[…]"),
}
"""The programs by name: the first six are those of `make test`."""

PARAMETERS = [
    pytest.param(name, marks=() if number < 6 else pytest.mark.long)
    for number, name in enumerate(CASES)
]


def run(folder: Path, name: str, **more: str) -> processes.Done:
    env = processes.environment(SIMULATED_CAPACITY_MB=str(CAPACITY_MIB), **more)
    return processes.run_python(PROGRAM, name, cwd=folder, env=env)


def texts(answer: Answer, *roles: str) -> str:
    """Return the texts and the notes of the lines that have one of these roles."""
    return "\n".join(f"{line.text} {line.note}" for line in answer.lines if line.role in roles)


def test_the_page_has_each_program() -> None:
    page = (Path(__file__).parents[1] / "answers.md").read_text()
    truths = dict(re.findall(r'^def (\w+)\(\) -> None:\n    """([^"]*)', PROGRAM.read_text(), re.M))
    for name, case in CASES.items():
        holder = f"`{case.holder.strip()}`" if case.holder else ""
        assert f"| {truths[name]} | {holder} | {case.advice} |\n" in page


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_answer_is_true(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    # WHEN a job that is recorded by default runs out of memory
    run(tmp_path, name, PYTRACER="1", **case.more)
    paths = sorted(tmp_path.glob("outputs/profile/oom_*/*.pickle"))
    assert paths
    answer = answer_of(explain(load(paths[case.which]), try_settings=try_settings)[0])
    # THEN the first line has the reason
    first = answer.verdict.removeprefix("OUT OF MEMORY: ")
    assert first.startswith(tuple(REASONS[kind] for kind in case.kinds))
    # AND the answer names what keeps the memory, and early what to do
    assert case.holder in texts(answer, "why", "held", "lines")
    assert any(case.advice in line for line in texts(answer, "do").splitlines()[:2])
    # AND the program passes if it does what helps
    if LONG:
        assert run(tmp_path, name, **{**case.more, **case.helped}).returncode == 0
