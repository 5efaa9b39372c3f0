"""What a training's blocks were, found without pytracer's analysis, and a comparison with it."""

import itertools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import life_training
import pytest
import torch
from amount import amount
from garbage import no_collection
from life_training import Look
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.utils import checkpoint as checkpoints
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import pytracer
from pytracer.analysis.blocks import held_at
from pytracer.analysis.device_data import device_data
from pytracer.reading.reader import load

MARKER = 10_000_003  # bytes; the programs allocate nothing as large

SMALLEST = 64  # smaller blocks are not compared: numbers that are wrapped as tensors, and losses

AUTOCAST = [("temporary", "autocast_cache"), ("temporary", "call_site")]
Events = list[dict[str, Any]]
Facts = list[set[str]]  # for each allocation in the order of the trace, what its block was


class Truth:
    """What the storages of a program are, by their address before the next marker.

    Hooks of autograd see each tensor that is saved, and the program itself shows its parameters,
    gradients and optimizer states.
    """

    def __init__(self, device: str) -> None:
        self._device, self._markers = device, 0
        self._seen: list[tuple[int, int, str]] = []  # markers so far, address, what

    def note(self, tensor: Any, what: str) -> None:
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if isinstance(tensor, Tensor) and tensor.device.type == self._device:
            storage = tensor.untyped_storage().data_ptr()
            self._seen.append((self._markers, storage, what))
            torch.empty(MARKER + self._markers, dtype=torch.uint8, device=self._device)
            self._markers += 1

    def look(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        for parameter in model.parameters():
            self.note(parameter, "parameter")
            self.note(parameter.grad, "gradient")
        for buffer in model.buffers():
            self.note(buffer, "buffer")
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for value in state.values():
                    self.note(value, "optimizer_state")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note what autograd saves; in a checkpoint, only what its recomputation saves."""

        def pack(tensor: Tensor) -> Tensor:
            self.note(tensor, "activation")
            return tensor.detach()

        hooks = checkpoints._recomputation_hook.__init__

        def noting(this: Any, *args: Any) -> None:
            hooks(this, *args)
            own = this.pack_hook

            def noting_pack(tensor: Tensor) -> Any:
                self.note(tensor, "activation")
                return own(tensor)

            this.pack_hook = noting_pack

        rng_state = torch.get_rng_state

        def noting_rng_state() -> Tensor:
            state = rng_state()
            if sys._getframe(1).f_code.co_filename == checkpoints.__file__:
                self.note(state, "kept")  # until the recomputation, or dropped with the graph
            return state

        fetch = _MapDatasetFetcher.fetch

        def noting_fetch(this: Any, indices: Any) -> Any:
            batch = fetch(this, indices)
            self.note(batch, "input")
            return batch

        call, grad = life_training.call, torch.autograd.grad

        def noting_call(model: nn.Module, x: Tensor, is_input: bool = True) -> Tensor:
            if is_input:
                self.note(x, "input")
            for buffer in model.buffers():  # a call may replace them
                self.note(buffer, "buffer")
            y = call(model, x)
            self.note(y, "output")
            return y

        def noting_grad(*args: Any, **given: Any) -> Any:
            gradients = grad(*args, **given)
            for gradient in gradients:
                self.note(gradient, "gradient")
            return gradients

        def noting_kept(x: Tensor, is_for_backward: bool) -> Tensor:
            if is_for_backward:
                self.note(x, "activation")
            return x

        reduce = _fsdp_param_group.foreach_reduce

        def noting_reduce(
            parameters: Any, gradients: list[Tensor], *args: Any, **given: Any
        ) -> Any:
            for gradient in gradients:
                self.note(gradient, "gradient")
            return reduce(parameters, gradients, *args, **given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(life_training, "call", noting_call)
            patch.setattr(life_training, "kept", noting_kept)
            patch.setattr(torch.autograd, "grad", noting_grad)
            patch.setattr(_fsdp_param_group, "foreach_reduce", noting_reduce)
            patch.setattr(_MapDatasetFetcher, "fetch", noting_fetch)
            patch.setattr(torch, "get_rng_state", noting_rng_state)
            patch.setattr(checkpoints._recomputation_hook, "__init__", noting)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                yield

    def facts(self, events: Events) -> tuple[list[int], Facts]:
        """Return the sizes of the allocations without markers, and what their blocks were."""
        by_marker: dict[int, list[tuple[int, str]]] = {}
        for marker, address, what in self._seen:
            by_marker.setdefault(marker, []).append((address, what))
        sizes: list[int] = []
        facts: Facts = []
        last: dict[int, set[str]] = {}
        for event in events:
            if event["action"] != "alloc":
                continue
            if event["size"] >= MARKER:
                for address, what in by_marker.get(event["size"] - MARKER, ()):
                    if address in last:  # else the block is older than the recording
                        last[address].add(what)
                continue
            last[event["addr"]] = set()
            if event["size"] >= SMALLEST:
                sizes.append(event["size"])
                facts.append(last[event["addr"]])
        return sizes, facts


def _known_facts(program: Callable[[str, Look], None], device: str, index: int) -> Any:
    """Run a program, and return the sizes of its allocations and what their blocks were."""
    truth = Truth(device)
    with (
        no_collection(),
        pytracer.Tracer(device=device, trace_alloc_max_entries=2_000_000) as tracer,
        truth.saving(),
    ):
        program(device, truth.look)
        events = tracer.snapshot()["device_traces"][index]
    return truth.facts(events)


def check(program: Callable[[str, Look], None], device: str) -> dict[str, Counter[Any]]:
    """Compare the categories of all blocks at each look with the truth.

    Returns:
        "rules": how many blocks each category and rule decided, over all looks; "peak": the bytes
        of each category at the peak, while the model still exists.
    """
    index = 0
    looks: list[object] = []
    program(device, lambda *_: looks.append(None))  # with what is allocated once, as workspaces
    last = len(looks)  # the look after the program
    compared = {*range(0, last, last // amount(7, 20) + 1), last - 1, last}
    sizes, facts = _known_facts(program, device, index)
    parameters = {size for size, known in zip(sizes, facts, strict=True) if "parameter" in known}
    snapshots: list[bytes] = []
    places = itertools.count()
    with (
        no_collection(),
        pytracer.Tracer(
            device=device,
            forward_stacks=True,
            phases="auto",
            stack_depth=500,  # a stack that is cut off decides nothing about inputs
            trace_alloc_max_entries=200_000,
        ) as tracer,
    ):

        def look(*_: object) -> None:
            if next(places) in compared:
                snapshots.append(pickle.dumps(tracer.snapshot(), protocol=4))

        program(device, look)
        look()  # the model is gone
    rules: Counter[Any] = Counter()
    assert len(snapshots) == len(compared)
    for content in [snapshots[-1], *snapshots[:-1]]:
        snapshot = load(content)
        data = device_data(snapshot, index)
        found, history = data.block_categories, data.history
        assert found is not None
        assert history.is_known
        lives = history.blocks
        recorded = (lives.alloc_event >= 0) & (lives.requested_bytes >= SMALLEST)
        requested = lives.requested_bytes[recorded].tolist()
        # The program did the same when the truth was collected.
        assert requested == sizes[: len(requested)]
        for place, kind in enumerate(found.kind[recorded].tolist()):
            category, rule = found.kinds[kind]
            rules[category, rule] += 1
            about = (category, rule, facts[place], requested[place], place)
            if (category, rule) in AUTOCAST:  # a copy of half the size, which may be saved too
                assert facts[place] <= {"activation"}, about
                assert 2 * requested[place] in parameters, about
            elif category == "temporary":
                assert facts[place] <= {"kept"}, about
            elif category == "communication":  # gathered parameters may be saved for backward
                assert not facts[place] & {"optimizer_state", "buffer", "input"}, about
            elif category != "unknown":
                own = facts[place] | ({"activation"} if facts[place] == {"kept"} else set())
                assert category in own, about
                others = {"parameter", "buffer", "optimizer_state", "gradient"} - {category}
                assert category == "mixed" or not facts[place] & others, about
    peak = int(history.usage.allocated_bytes.argmax())
    held = held_at(data, peak).group("category")
    return {"rules": rules, "peak": Counter({each.key[0]: each.size_bytes for each in held})}
