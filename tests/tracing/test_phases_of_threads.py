"""Check which phase the events of a thread have that has entered none."""

import threading

import torch

import pytracer


def test_a_prefetching_thread_is_in_no_phase_of_another_thread() -> None:
    # GIVEN a module's forward, and a thread that allocates meanwhile
    go, done = threading.Event(), threading.Event()

    def prefetch() -> None:
        go.wait(10)
        torch.empty(12345, dtype=torch.uint8)
        done.set()

    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.empty(54321, dtype=torch.uint8)
            go.set()
            done.wait(10)
            return x

    model = torch.nn.Sequential(Slow())
    thread = threading.Thread(target=prefetch)
    thread.start()
    with pytracer.Tracer(device="cpu") as tracer, pytracer.annotate_modules(model):
        model(torch.ones(2))
        thread.join()
    # THEN the module's own block has its phase, and the thread's block has none
    phases = {int(e["size_bytes"]): tracer.phase(e["phase"]) for e in tracer.events()}
    assert phases[54321][-1:] == ("0",)
    assert phases[12345] == ()
