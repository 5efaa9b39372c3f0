"""Programs that run out of memory in a step that needs more than there is, or than before."""

import copy
import random

import torch
from corpus.kept_by_objects import data, linear, sgd
from corpus.out_of_memory import GPT, Block, loss_of, runs_out, tokens, update
from corpus.truth import DEVICE, FIXED, PART, truth
from torch import nn
from torch.nn import functional

EXHAUSTED = ("nearly exhausted", "step needs more")


def deep(width: int, layers: int, *more: nn.Module) -> nn.Module:
    pairs = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
    return nn.Sequential(*pairs, *more).to(DEVICE)


@runs_out(*EXHAUSTED, do="Sequential#2", mib=800)
def teacher_in_eval_mode() -> None:
    """A teacher is only in evaluation mode, and its graph is most of what a distillation keeps."""
    student = nn.Sequential(linear(256, 512), deep(512, 4, nn.Linear(512, 100))).to(DEVICE)
    teacher = nn.Sequential(linear(256, 1024), deep(1024, 8, nn.Linear(1024, 100))).eval()
    optimizer = torch.optim.AdamW(student.parameters())
    for _ in range(5):
        x = data(8192, 256)
        with torch.set_grad_enabled(not FIXED):
            target = teacher(x).log_softmax(-1)
        update(optimizer, functional.kl_div(student(x).log_softmax(-1), target, log_target=True))


@runs_out(*EXHAUSTED, do="GPT#2", mib=1000)
def reference_of_a_policy() -> None:
    """GRPO runs its frozen reference with gradients, and its graph lives as long as the loss."""
    policy = GPT(words=2048, room=512).to(DEVICE)
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters())

    def log_probs(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        scores = model(ids)[:, :-1].log_softmax(-1)
        return scores.gather(2, ids[:, 1:, None]).squeeze(-1)

    for _ in range(6):
        ids = tokens(8, 384, 2048)
        with torch.set_grad_enabled(not FIXED):
            old = log_probs(reference, ids)
        new = log_probs(policy, ids)
        gain = (new - new.detach()).exp() * data(8, 1)
        update(optimizer, -(gain - 0.04 * ((old - new).exp() - (old - new) - 1)).mean())


@runs_out(*EXHAUSTED, "can't tell", do="Sequential#2", mib=300)
def target_of_byol() -> None:
    """The target network of BYOL, which only an average updates, runs with gradients."""
    layers = []
    for width in (3, 32, 32, 32):
        layers += nn.Conv2d(width, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    online = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64))
    target = copy.deepcopy(online.to(DEVICE))
    optimizer = sgd(online)
    for _ in range(6):
        one, two = data(32, 3, 48, 48), data(32, 3, 48, 48)
        with torch.set_grad_enabled(not FIXED):
            goals = target(one), target(two)
        losses = (online(two) - goals[0]).square().mean(), (online(one) - goals[1]).square().mean()
        update(optimizer, sum(losses))
        with torch.no_grad():
            for new, old in zip(online.parameters(), target.parameters(), strict=True):
                old.lerp_(new, 0.01)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 512), nn.Linear(512, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        self.last_hidden = hidden.detach()
        return self.down(hidden)


@truth("healthy", kept="model.last_hidden", wrong=("keeper",))
def last_hidden_of_a_model() -> None:
    """A model keeps the hidden states of the last batch between the steps; nothing grows."""
    model = Remembers().to(DEVICE)
    optimizer = sgd(model)
    for _ in range(30):
        update(optimizer, model(data(4096, 64)).square().mean())


class Trainer:
    def __init__(self) -> None:
        self.model = deep(512, 6, nn.Linear(512, 4096))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.outputs: dict[str, torch.Tensor] = {}

    def step(self, x: torch.Tensor) -> None:
        logits = self.model(x)
        self.outputs = {"logits": logits.detach().clone(), "loss": logits.logsumexp(-1).mean()}
        update(self.optimizer, self.outputs["loss"])


@runs_out(*EXHAUSTED, kept="outputs", do="half the batch", mib=800, helped={"PART": "2"})
def outputs_of_the_step_before() -> None:
    """A trainer keeps the outputs of the step before during the next forward pass."""
    trainer = Trainer()
    for step in range(10):
        trainer.step(data((8000 if step else 7000) // PART, 512))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))
        self.kv: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x

    @torch.no_grad()
    def rollout(self) -> None:
        if not self.kv:
            self.kv = [torch.zeros(2, 16, 800, 512, device=DEVICE) for _ in self.layers]
        x = data(16, 512)
        for layer, kv in zip(self.layers, self.kv, strict=True):
            kv[0, :, 0] = x
            x = layer(x)
        if FIXED:
            self.kv = []


@runs_out("larger input", *EXHAUSTED, kept="kv[…]", mib=560)
def cache_of_rollouts() -> None:
    """An actor keeps 300 MiB of keys and values of its rollouts while a long batch is trained."""
    actor = Actor().to(DEVICE)
    optimizer = torch.optim.AdamW(actor.parameters())
    for iteration in range(8):
        actor.rollout()
        update(optimizer, actor(data(8192 if iteration == 4 else 4096, 512)).square().mean())


@runs_out(*EXHAUSTED, do="8-bit or sharded optimizer", mib=560)
def first_states_of_adamw() -> None:
    """Parameters, gradients and activations fit, and the states of AdamW do not."""
    layers = (nn.Linear(2048, 2048, bias=False) for _ in range(10))
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = sgd(model) if FIXED else torch.optim.AdamW(model.parameters())
    for _ in range(4):
        update(optimizer, model(data(64, 2048)).square().mean())


@runs_out("larger input", *EXHAUSTED, do="torch.no_grad()", mib=440)
def first_evaluation() -> None:
    """The first evaluation has a batch 16 times as large, and calls eval(), but not no_grad()."""
    model = deep(512, 12)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        update(optimizer, model(data(500, 512)).square().mean())
    model.eval()
    with torch.set_grad_enabled(not FIXED):
        model(data(8000, 512)).mean().item()


@runs_out("larger input", do="Limit the size of one step's input", mib=700)
def longest_sequence() -> None:
    """One sequence is four times as long as the longest of 30 steps before."""
    random.seed(3)
    model = nn.Sequential(*(Block(256, 1) for _ in range(4))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(40):
        length = random.randrange(128, 384)
        length = 1700 if step == 30 and not FIXED else length
        update(optimizer, model(data(8, length, 256)).square().mean())


@runs_out(*EXHAUSTED, do="of this batch fits", mib=800, helped={"PART": "8"})
def too_deep_for_its_batch() -> None:
    """The first forward pass of a transformer ends in layer 3 of 12: all need twice the memory."""
    model = GPT(layers=12, words=1000, room=256).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        update(optimizer, loss_of(model, tokens(24, 256, 1000)))
