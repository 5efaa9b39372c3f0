"""Programs whose memory is known by construction; see test_truth.py.

    python truth_programs.py NAME [STEP BYTES]

With a step, the allocator may reserve so many bytes from then on; without, the program runs to its
end. It prints as JSON what was allocated at the begin of each step and at most in it, and the
addresses of what the variables of its function have: by the role of the memory, and the name of a
variable.
"""

import copy
import gc
import itertools
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from pytracer.owners import holders

DEVICE = "cuda"
WORDS = 8192
torch.backends.cudnn.enabled = False  # the simulated one has neither convolutions nor LSTMs
gc.unfreeze()  # what the tests have frozen before the fork, which would not be found as a holder

holders.MAX_SECONDS = 60  # a busy machine looks at fewer objects in the time that users have

Addresses = dict[str, dict[str, list[int]]]
sizes: list[tuple[int, int]] = []


def steps(count: int) -> Iterator[int]:
    """Yield the numbers of the steps; note what each allocates, and set the limit."""
    for number in range(count):
        torch.cuda.reset_peak_memory_stats()
        begin = torch.cuda.memory_allocated()
        if sys.argv[2:3] == [str(number)]:
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(int(sys.argv[3]) / total)
        yield number
        sizes.append((begin, torch.cuda.max_memory_allocated()))


def tensors_in(value: Any, nesting: int = 0) -> Iterator[Tensor]:
    """Yield the tensors in a value of the program, which has a few containers and a class."""
    if isinstance(value, Tensor):
        yield value.to_local() if hasattr(value, "to_local") else value
    elif nesting < 4 and not isinstance(value, nn.Module | torch.optim.Optimizer):
        items: Iterable[Any] = ()
        if isinstance(value, list | tuple):
            items = value
        elif isinstance(value, dict):
            items = value.values()
        elif type(value).__module__ == "__main__" or type(value).__name__.startswith("Dynamic"):
            items = vars(value).values()
        for item in items:
            yield from tensors_in(item, nesting + 1)


def addresses_of(values: Iterable[Any]) -> list[int]:
    found = (tensor for value in values for tensor in tensors_in(value) if tensor.device.index == 0)
    return [tensor.untyped_storage().data_ptr() for tensor in found]


def truth(variables: dict[str, Any]) -> Addresses:
    """Return the addresses of what variables have, by role and name."""
    modules = [value for value in variables.values() if isinstance(value, nn.Module)]
    optimizers = [value for value in variables.values() if isinstance(value, torch.optim.Optimizer)]
    parameters = [each for module in modules for each in module.parameters()]
    # FSDP2 has gathered ones in their place meanwhile.
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    parameters += (each for group in groups for each in group["params"])
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    graphless = {
        name: addresses_of(t for t in tensors_in(value) if t.grad_fn is None)
        for name, value in variables.items()
    }
    return {
        "parameter": {"": addresses_of(parameters)},
        "buffer": {"": addresses_of(each for module in modules for each in module.buffers())},
        "gradient": {"": addresses_of(each.grad for each in parameters)},
        "optimizer_state": {"": addresses_of(states)},
        "kept": {name: found for name, found in graphless.items() if found},
    }


def report(variables: dict[str, Any]) -> None:
    found = truth(variables)
    print(json.dumps({"sizes": sizes, "truth": found}))


class Attention(nn.Module):
    def __init__(self, width: int, eager: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.eager = eager

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        if self.eager:
            scores = (q @ k.transpose(-1, -2) / 8).float()
            hidden = torch.full(scores.shape[-2:], -1e9, device=scores.device).triu(1)
            y = (scores + hidden).softmax(-1).to(v.dtype) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, width: int, eager: bool) -> None:
        super().__init__()
        self.attention = Attention(width, eager)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Tokens to logits; `reentrant`: the kind of checkpoints around each block, None: none."""

    def __init__(
        self, width: int = 512, *, eager: bool = False, reentrant: bool | None = None
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.place = nn.Parameter(torch.zeros(1024, width))
        self.blocks = nn.ModuleList(Block(width, eager) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


def some_tokens(batch: int = 8, length: int = 256) -> Tensor:
    return torch.randint(0, WORDS, (batch, length), device=DEVICE)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def gpt() -> None:
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        update(optimizer, loss_of(model, some_tokens()))
    report(locals())


def scaler() -> None:
    model = GPT(eager=True).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE)
    for _ in steps(3):
        with torch.autocast(DEVICE, torch.float16):
            loss = loss_of(model, some_tokens())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    report(locals())


def _llama(implementation: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds, for two programs

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        attn_implementation=implementation,
    )
    return LlamaForCausalLM(config).to(DEVICE)


def llama() -> None:
    model = _llama("eager")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        tokens = some_tokens()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        update(optimizer, loss)
    report(locals())


class LoRA(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def lora() -> None:
    model = GPT(768).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = LoRA(block.attention.qkv)
        block.mlp[0] = LoRA(block.mlp[0])
    model.to(DEVICE).to(torch.bfloat16)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    for _ in steps(3):
        update(optimizer, loss_of(model, some_tokens(16)))
    report(locals())


def checkpoints() -> None:
    _checkpointed(reentrant=False)


def reentrant_checkpoints() -> None:
    _checkpointed(reentrant=True)


def _checkpointed(*, reentrant: bool) -> None:
    model = GPT(reentrant=reentrant).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model, some_tokens(16))
        update(optimizer, loss)
    report(locals())


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 64, 128, 128, 128, 128]
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, 3, padding=1) for i, o in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.classify = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = functional.relu(norm(layer(x)))
            if number % 2:
                x = functional.max_pool2d(x, 2)
        return self.classify(x.mean((2, 3)))


class Pictures(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 64 * 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3, 64, 64), index % 10


def convolutions() -> None:
    model = ConvNet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = iter(DataLoader(Pictures(), batch_size=64))
    for _ in steps(3):
        pictures, classes = next(loader)
        loss = functional.cross_entropy(model(pictures.to(DEVICE)), classes.to(DEVICE))
        update(optimizer, loss)
    report(locals())


def ema() -> None:
    model = GPT().to(DEVICE)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        update(optimizer, loss_of(model, some_tokens()))
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    report(locals())


def reference() -> None:
    model = GPT().to(DEVICE)
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        tokens = some_tokens()
        with torch.no_grad():
            wanted = frozen(tokens).log_softmax(-1)
        loss = functional.kl_div(model(tokens).log_softmax(-1), wanted, log_target=True)
        update(optimizer, loss)
    report(locals())


class OwnAdam:
    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.first = [torch.zeros_like(each) for each in self.parameters]
        self.second = [torch.zeros_like(each) for each in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, m, v in zip(self.parameters, self.first, self.second, strict=True):
            gradient = parameter.grad
            m.mul_(0.9).add_(gradient, alpha=0.1)
            v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            parameter.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)
            parameter.grad = None


def own_optimizer() -> None:
    model = GPT().to(DEVICE)
    optimizer = OwnAdam(model.parameters())
    for _ in steps(3):
        loss_of(model, some_tokens()).backward()
        optimizer.step()
    report(locals())


def muon() -> None:
    model, momentum = GPT().to(DEVICE), {}
    for _ in steps(3):
        loss_of(model, some_tokens()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                update = momentum.setdefault(parameter, torch.zeros_like(parameter))
                update.lerp_(parameter.grad, 0.1)
                if parameter.ndim == 2 and parameter.shape[0] < WORDS:
                    update = update / (update.norm() + 1e-7)
                    for _ in range(3):
                        update = 1.5 * update - 0.5 * (update @ update.T) @ update
                parameter.sub_(update, alpha=0.01)
                parameter.grad = None
    report(locals())


def static_cache() -> None:
    model, cache = GPT(768).to(DEVICE).eval(), []
    with torch.no_grad():
        for _ in steps(16):
            cache.append([torch.zeros(32, 8, 96, 256, device=DEVICE) for _ in "kv"])
            model(some_tokens(8, 64))
    report(locals())


@torch.no_grad()
def generation() -> None:
    model, past = _llama("sdpa").eval(), None
    for _ in steps(12):
        past = model(
            input_ids=some_tokens(32, 64), past_key_values=past, use_cache=True
        ).past_key_values
    report(locals())


def kept_logits() -> None:
    model = GPT().to(DEVICE)
    optimizer, log = torch.optim.AdamW(model.parameters()), []
    for _ in steps(6):
        tokens = some_tokens()
        logits = model(tokens)
        update(optimizer, functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
        log.append(logits.detach())
    report(locals())


def double_backward() -> None:
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.SiLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps(3):
        x = torch.randn(8192, 1024, device=DEVICE, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = ((slope.norm(dim=1) - 1) ** 2).mean() + y.mean()
        update(optimizer, loss)
        x.grad = None
    report(locals())


def compiled() -> None:
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    fast = torch.compile(model, backend="aot_eager")
    for _ in steps(3):
        update(optimizer, loss_of(fast, some_tokens()))
    report(locals())


def accumulation() -> None:
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in steps(3):
        for _ in range(3):
            (loss_of(model, some_tokens()) / 3).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    report(locals())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = x * 2
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.slope


def own_function() -> None:
    layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8)).to(DEVICE)
    optimizer = torch.optim.Adam(layers.parameters())
    for _ in steps(3):
        x = torch.randn(8192, 1024, device=DEVICE)
        for layer in layers:
            x = Square.apply(layer(x))
        update(optimizer, x.mean())
    report(locals())


def fsdp2() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh(DEVICE, (2,))
    model = GPT(768).to(DEVICE)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        update(optimizer, loss_of(model, some_tokens()))
    report(locals())


def two_optimizers() -> None:
    actor, critic = GPT(384).to(DEVICE), GPT(384).to(DEVICE)
    of_actor = torch.optim.AdamW(actor.parameters())
    of_critic = torch.optim.AdamW(critic.parameters())
    for _ in steps(2):
        with torch.no_grad():
            tokens = [some_tokens(4) for _ in range(4)]
            batch = [(each, actor(each).log_softmax(-1)) for each in tokens]
        for each, old in batch:
            update(of_actor, (actor(each).log_softmax(-1) - old).exp().mean())
            critic(each).mean().backward()
            of_critic.step()
            of_critic.zero_grad()
    report(locals())


@torch.no_grad()
def graphs() -> None:
    model, tokens, kept, results = GPT().to(DEVICE).eval(), some_tokens(), [], []
    for number in steps(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            model(tokens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(tokens[: 8 - 2 * number])
        results.append((graph, result))
        kept.extend(model(tokens) for _ in range(3))
    report(locals())


def rnn() -> None:
    model = nn.LSTM(256, 512, 2, batch_first=True).to(DEVICE)
    head = nn.Linear(512, WORDS).to(DEVICE)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for _ in steps(3):
        hidden, _state = model(torch.randn(32, 64, 256, device=DEVICE))
        update(optimizer, head(hidden).float().logsumexp(-1).mean())
    report(locals())


def vae() -> None:
    encoder = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to(DEVICE)
    decoder = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048)).to(DEVICE)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in steps(3):
        x = torch.randn(8192, 2048, device=DEVICE)
        mean, spread = encoder(x).chunk(2, -1)
        result = decoder(mean + torch.randn_like(mean) * (spread / 2).exp())
        loss = functional.mse_loss(result, x)
        loss = loss + (-0.5 * (1 + spread - mean**2 - spread.exp())).mean()
        update(optimizer, loss)
    report(locals())


def retained_graph() -> None:
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(3):
        loss = loss_of(model, some_tokens())
        loss.backward(retain_graph=True)
        optimizer.zero_grad()
        update(optimizer, loss)
    report(locals())


def main() -> None:
    try:
        globals()[sys.argv[1]]()
    except torch.OutOfMemoryError as error:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        functions = sys.argv[1], "_checkpointed"
        *_, variables = (each.f_locals for each in frames if each.f_code.co_name in functions)
        report(variables)
        sys.stdout.flush()
        os._exit(0)


main()
