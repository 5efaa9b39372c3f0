"""Run out of memory on a real GPU, as programs of users do: `tests/hardware.py` runs each of these.

    pytracer run tests/hardware_programs.py NAME

They train Llama models of transformers with random weights, on a device of 60 GiB or more. The
answers of an H200 are in bench/results/hardware_h200.md.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

GIB = 2**30
WORDS = 32_000


def device_gib() -> int:
    return torch.cuda.get_device_properties(0).total_memory // GIB


def model(layers: int, width: int = 2048, **options: Any) -> Any:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 256 * 256,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        max_position_embeddings=65_536,
        **options,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config)


def batch(size: int, length: int) -> Tensor:
    return torch.randint(0, WORDS, (size, length), device="cuda")


def optimizer_of(trained: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=1e-5)


def forward(trained: nn.Module, tokens: Tensor) -> Any:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return trained(input_ids=tokens, labels=tokens, use_cache=False)


def step(trained: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Any:
    output = forward(trained, tokens)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return output


# --- more than the device has ---------------------------------------------------------------------


def too_large_batch() -> None:
    trained = model(20)
    step(trained, optimizer_of(trained), batch(device_gib() * 3 // 8, 2048))


def too_large_scores() -> None:
    trained = model(20)
    trained.gradient_checkpointing_enable()
    trained.train()
    step(trained, optimizer_of(trained), batch(device_gib(), 2048))


def long_batch() -> None:
    trained = model(12)
    optimizer = optimizer_of(trained)
    for number in range(9):
        step(trained, optimizer, batch(8, device_gib() * 96 if number == 8 else 1024))


def varying_batches() -> None:
    trained = model(16)
    optimizer = optimizer_of(trained)
    random = torch.Generator().manual_seed(3)

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most, (1,), generator=random))

    for _ in range(60):
        step(trained, optimizer, batch(number(4, device_gib() // 9), number(256, 4_000)))


# --- memory that is kept --------------------------------------------------------------------------


def kept_graphs() -> None:
    trained, history = model(4, 1024), []
    optimizer = optimizer_of(trained)
    for _ in range(500):
        step(trained, optimizer, batch(8, 1024))
        history.append(forward(trained, batch(4, 1024)).logits)


def kept_graphs_of_one_step() -> None:
    trained, losses = model(8), []
    optimizer = optimizer_of(trained)
    for _ in range(6):
        step(trained, optimizer, batch(8, 1024))
    for _ in range(400):
        losses.append(forward(trained, batch(8, 1024)).loss)


def another_try_within_except() -> None:
    trained = model(12)
    optimizer = optimizer_of(trained)
    for _ in range(3):
        step(trained, optimizer, batch(8, 1024))

    def attempt(size: int) -> None:
        try:
            step(trained, optimizer, batch(size, 2048))
        except torch.OutOfMemoryError:
            if size > 8:
                attempt(size * 3 // 4)

    attempt(device_gib())


def growing_cache() -> None:
    trained, past = model(16).bfloat16().eval(), None
    with torch.no_grad():
        for _ in range(4_000):
            output = trained(input_ids=batch(64, 256), past_key_values=past, use_cache=True)
            past = output.past_key_values


# --- memory that others have ----------------------------------------------------------------------


def graphs() -> None:
    trained, kept = model(8).bfloat16().eval(), []
    with torch.no_grad():
        for size in (64, 48, 32, 16, 8):
            tokens = batch(size, 2048)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                trained(input_ids=tokens, use_cache=False)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = trained(input_ids=tokens, use_cache=False).logits
            kept.append((graph, tokens, output))
    held = []
    while True:
        held.append(torch.empty(4 * GIB, dtype=torch.uint8, device="cuda"))


def library() -> None:
    held = []
    for size in (GIB, 2 * 2**20):
        try:
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
    del held[-2:]
    ones = torch.ones(64, 64, device="cuda")
    ones @ ones


FIRST_WORDS: dict[Callable[[], None], str] = {
    too_large_batch: "nearly all memory is in use",
    too_large_scores: "",  # what is said of it depends on the size of the device
    long_batch: "this step needs more than earlier ones",
    varying_batches: "fragmented",
    kept_graphs: "a leak",
    kept_graphs_of_one_step: "nearly all memory is in use",
    another_try_within_except: "an exception keeps a failed attempt's memory in use",
    growing_cache: "one line's blocks become larger and larger",
    graphs: "free memory in another pool",
    library: "a library could not allocate device memory",
}
"""What the answer about the last out-of-memory of each program begins with."""

if __name__ == "__main__":
    {program.__name__: program for program in FIRST_WORDS}[sys.argv[1]]()
