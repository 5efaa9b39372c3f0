"""The loop of a small training that calls `look` at many moments, and the calls to watch."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Look = Callable[[nn.Module, list[torch.optim.Optimizer]], None]


class Looking(nn.Module):
    """A layer that looks in the middle of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.look()
        return x


def call(model: nn.Module, x: Tensor, is_input: bool = True) -> Tensor:
    """Call a model; `is_input`: the program made the argument. Patched where the truth is made."""
    y: Tensor = model(x)
    return y


def kept(x: Tensor, is_for_backward: bool) -> Tensor:
    """Return what a function keeps in an attribute. Patched where the truth is made."""
    return x


def train(
    model: nn.Sequential,
    make_batch: Callable[[], Tensor],
    look: Look,
    *,
    accumulate: int = 1,
    set_to_none: bool = True,
    retain_graph: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    wrapped: nn.Module | None = None,
) -> None:
    """Train a model for four steps.

    Args:
        model: The model.
        make_batch: Makes a batch.
        look: Called at many moments.
        accumulate: The number of batches of a step.
        set_to_none: Whether `zero_grad` drops the gradients.
        retain_graph: Whether the second step runs backward twice.
        optimizer: The optimizer; None: AdamW with foreach functions.
        scaler: Scales the loss; the forward pass is then in autocast, and the others are not.
        wrapped: The module that is called in place of the model.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=True)
    wrapped = wrapped or model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def look_now(_: object = None) -> None:
        look(model, [optimizer])

    def region() -> Any:
        # Not a region that is switched off: a caller's region would have no effect inside of it.
        device = next(model.parameters()).device.type
        return torch.autocast(device, torch.bfloat16) if scaler else nullcontext()

    looking = [module for module in model if isinstance(module, Looking)]
    for module in looking:
        module.look = look_now
    handles = [parameter.register_post_accumulate_grad_hook(look_now) for parameter in trained[:2]]
    for step in range(4):
        for _ in range(accumulate):
            batch = make_batch()
            with region():
                output = call(wrapped, batch)
                loss = output.float().square().mean()
            look_now()
            if scaler is not None:
                loss = scaler.scale(loss)
            if retain_graph and step == 1:
                loss.backward(retain_graph=True)
            loss.backward()
            look_now()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        look_now()
        optimizer.zero_grad(set_to_none=set_to_none)
        # In autocast as above: otherwise the peak may be in a graph that no backward pass frees.
        with region():
            with torch.no_grad():
                call(wrapped, batch)
            call(wrapped, batch)  # its graph is dropped without a backward pass
        look_now()
    # Garbage collection does not see the references of torch's hooks.
    for handle in handles:
        handle.remove()
    for module in looking:
        del module.look
