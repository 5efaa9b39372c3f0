"""Test the names of state that is kept in unusual ways: quantised, offloaded, after a fork."""

import os
import pickle
import traceback
from typing import Any

import torch
from owner_programs import block_of, blocks_in
from torch import Tensor, nn
from torch.utils import _pytree

import pytracer


class Quantised(Tensor):
    """A tensor of numbers with a smaller type and their scales, as optimizers with 8 bits have."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> "Quantised":
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def whole(value: Any) -> Any:
            return value.codes * value.scale if isinstance(value, Quantised) else value

        return func(*_pytree.tree_map(whole, args), **_pytree.tree_map(whole, kwargs or {}))


class Adam8bit(torch.optim.Optimizer):
    """Keeps one state as a subclass of Tensor, and one as a list of tensors in a dict."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            codes = torch.zeros(parameter.shape, dtype=torch.int8)
            self.state[parameter]["exp_avg"] = Quantised(codes, torch.ones(90))
            parts = {"codes": [torch.zeros(300, dtype=torch.uint8)], "absmax": torch.ones(110)}
            self.state[parameter]["state2"] = parts


def test_quantised_state() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Linear(50, 20, bias=False)
        optimizer = Adam8bit(model.parameters())
        optimizer.step()
        blocks = blocks_in(tracer.snapshot())
    state = optimizer.state[model.weight]
    kept = [(tensor, "exp_avg") for tensor in (state["exp_avg"].codes, state["exp_avg"].scale)]
    kept += [(state["state2"]["codes"][0], "state2"), (state["state2"]["absmax"], "state2")]
    for tensor, name in kept:
        found = block_of(tensor, blocks)
        assert found["category"] == "optimizer_state"
        assert found["owner"].startswith(f"{name} of ")
        assert found["owner"].endswith("weight")


def test_offloaded_and_restored_state() -> None:
    with pytracer.Tracer(device="cpu") as tracer:
        model = nn.Linear(50, 20)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(3, 50)).sum().backward()
        optimizer.step()
        # WHEN a program keeps the state elsewhere, and other tensors get its memory
        kept = pickle.dumps((optimizer.state_dict(), model.state_dict()), protocol=4)
        optimizer.state.clear()
        model.weight.data, model.weight.grad = torch.empty(0), None
        others = [torch.ones(50 * 20) for _ in range(4)]
        away = blocks_in(tracer.snapshot())
        del others[:]
        # AND takes it back
        # Copies: on the CPU, nothing records the memory of unpickled tensors.
        of_optimizer, of_model = _pytree.tree_map_only(Tensor, Tensor.clone, pickle.loads(kept))
        model.weight.data = of_model["weight"]
        optimizer.load_state_dict(of_optimizer)
        back = blocks_in(tracer.snapshot())
    # THEN what is away has no name, and what is back has
    named = {block["owner"] for block in away if "owner" in block}
    assert not any(owner.endswith("weight") for owner in named)
    assert block_of(model.weight, back)["category"] == "parameter"
    for name in ("exp_avg", "exp_avg_sq"):
        found = block_of(optimizer.state[model.weight][name], back)
        assert found["category"] == "optimizer_state"
        assert found["owner"].endswith("weight")


def test_a_forked_child_has_names_of_its_own() -> None:
    # GIVEN a traced model in a parent
    with pytracer.Tracer(device="cpu", phases="auto"):
        model = nn.Linear(50, 20)
        model(torch.ones(3, 50)).sum().backward()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)  # the threads with which torch multiplies did not fork
                # WHEN the child traces anew, THEN its blocks have names
                with pytracer.Tracer(device="cpu", phases="auto") as tracer, torch.no_grad():
                    other = nn.Linear(50, 40)
                    y = other(torch.ones(3, 50))
                    snapshot = tracer.snapshot()
                blocks = blocks_in(snapshot)
                assert block_of(other.weight, blocks)["category"] == "parameter"
                assert y.numel() == 120
                roles = [role for *_, role in snapshot["pytracer"]["devices"][0]["uses"]]
                assert roles == ["argument", "result"]
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
