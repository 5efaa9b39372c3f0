"""Train a small language model by PPO, and record what each phase allocates.

    python rlhf_phases.py --device cpu --rollout-is applied

The policy learns to answer in even numbers. A step samples responses of varying lengths
(`rollout`), computes their log-probabilities under the current policy and under the first one
(`actor_log_probs`, `reference_log_probs`) and their values (`critic_values`), rewards them
(`reward`), and trains the critic and the actor. The last step writes a snapshot, and one for each
of its phases. docs/how-to/phases.md describes them.

Responses are sampled in bfloat16 and the training uses float32, because in practice one engine
samples and another trains. Rollout importance sampling corrects for the difference, token by token:
the policy's loss is weighted by the token's probability in training over its probability in
sampling, truncated at TRUNCATION. `--rollout-is metrics` only reports the weights, `applied` uses
them.
"""

import argparse
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import pytracer

TRUNCATION = 2.0  # of an importance weight
CLIP = 0.2  # of PPO's ratio
KL = 0.01  # cost of a nat of divergence from the reference


@dataclass(frozen=True)
class Shape:
    """Sizes of the batch and the models; prompts and responses have at most these lengths."""

    batch: int = 32
    mini_batches: int = 4
    prompt: int = 16
    response: int = 48
    vocabulary: int = 512
    width: int = 128
    heads: int = 4
    layers: int = 2


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))


class Decoder(nn.Module):
    """A causal transformer that gives each token a score for every next token, or one value."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.prompt + shape.response, shape.width)
        layers = (Layer(shape.width, shape.heads) for _ in range(shape.layers))
        self.layers = nn.Sequential(*layers, nn.LayerNorm(shape.width))
        self.head = nn.Linear(shape.width, outputs)

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.layers(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


@dataclass
class Texts:
    """Prompts with their responses, padded on the right, so that causal attention needs no mask.

    Figures of tokens leave out the first token, which nothing predicts. `is_response` is 1 where a
    token was sampled, and 0 for prompts and padding.
    """

    tokens: Tensor
    is_response: Tensor
    prompts: list[int]  # their lengths
    responses: list[int]


def make_prompts(shape: Shape, device: str, chance: random.Random) -> Texts:
    """Draw prompts, and the lengths of responses, which a real policy decides as it samples."""
    prompts = [chance.randint(shape.prompt // 2, shape.prompt) for _ in range(shape.batch)]
    responses = [chance.randint(shape.response // 4, shape.response) for _ in range(shape.batch)]
    longest = max(map(sum, zip(prompts, responses, strict=True)))
    tokens = torch.zeros(shape.batch, longest, dtype=torch.long)
    is_response = torch.zeros(shape.batch, longest - 1)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens[row, :prompt] = torch.tensor(chance.choices(range(shape.vocabulary), k=prompt))
        is_response[row, prompt - 1 : prompt - 1 + response] = 1
    return Texts(tokens.to(device), is_response.to(device), prompts, responses)


@torch.no_grad()
def sample(actor: Decoder, texts: Texts, log_probs: Tensor | None) -> None:
    """Fill in the responses, and the log-probabilities with which they were sampled."""
    device = texts.tokens.device
    with torch.autocast(device.type, torch.bfloat16):
        for count in range(max(texts.responses)):
            unfinished = [row for row, length in enumerate(texts.responses) if count < length]
            ends = [texts.prompts[row] + count for row in unfinished]
            rows = torch.tensor(unfinished, device=device)
            at = torch.tensor(ends, device=device)
            hidden = actor.hidden(texts.tokens[rows, : max(ends)])
            scores = actor.head(hidden[torch.arange(len(ends), device=device), at - 1]).float()
            # The largest of these is a sample; torch.multinomial would wait for the device.
            token = (scores.softmax(-1) / torch.empty_like(scores).exponential_()).argmax(-1)
            texts.tokens[rows, at] = token
            if log_probs is not None:
                with pytracer.annotate("rollout_is"):
                    log_probs[rows, at - 1] = log_prob(scores, token)


def log_prob(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of tokens (n) with scores (n, vocabulary)."""
    return -functional.cross_entropy(scores, tokens, reduction="none")


def log_probs_of(policy: Decoder, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token but the first."""
    scores = policy(tokens[:, :-1])
    return log_prob(scores.flatten(0, 1), tokens[:, 1:].flatten()).view_as(tokens[:, 1:])


def mean(x: Tensor, where: Tensor) -> Tensor:
    return (x * where).sum() / where.sum()


def values_of(critic: Decoder, tokens: Tensor) -> Tensor:
    """Return the value at each token but the last."""
    return critic(tokens[:, :-1]).squeeze(-1)


def importance_weights(
    log_probs: Tensor, sampled: Tensor, where: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """Return the truncated weights of tokens, and figures about them.

    `log_probs` come from training, `sampled` from sampling.
    """
    log_ratios = (log_probs - sampled).clamp(-20, 20)
    ratios = log_ratios.exp()
    weights = ratios.clamp(max=TRUNCATION)
    metrics = {
        "weight": mean(weights, where),
        "largest": (ratios * where).max(),
        "truncated": mean((ratios > TRUNCATION).float(), where),
        "effective": mean(weights, where).square() / mean(weights.square(), where),
        "divergence": mean(ratios - log_ratios - 1, where),  # KL of sampling from training, in nats
    }
    return weights, {name: value.item() for name, value in metrics.items()}


class Trainer:
    """The models, and a training step with them."""

    def __init__(self, shape: Shape, device: str, rollout_is: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.chance = random.Random(seed)
        self.shape, self.device, self.rollout_is = shape, device, rollout_is
        self.actor = Decoder(shape, shape.vocabulary).to(device)
        self.reference = copy.deepcopy(self.actor).requires_grad_(False)
        self.critic = Decoder(shape, 1).to(device)
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), lr=1e-3)

    def step(self) -> dict[str, float]:
        """Make a step, and return its figures."""
        texts = make_prompts(self.shape, self.device, self.chance)
        tokens, where = texts.tokens, texts.is_response
        sampled, weights, metrics = None, None, {}

        with pytracer.annotate("rollout"):
            if self.rollout_is != "off":
                with pytracer.annotate("rollout_is"):
                    sampled = torch.zeros_like(where)
            sample(self.actor, texts, sampled)
        with pytracer.annotate("actor_log_probs"):
            log_probs = self.in_parts(log_probs_of, self.actor, tokens)
        with pytracer.annotate("reference_log_probs"):
            reference = self.in_parts(log_probs_of, self.reference, tokens)
        with pytracer.annotate("critic_values"):
            values = self.in_parts(values_of, self.critic, tokens)
        with pytracer.annotate("reward"):
            reward, returns, advantages = judge(texts, log_probs - reference, values)
        if sampled is not None:
            with pytracer.annotate("rollout_is"):
                weights, metrics = importance_weights(log_probs, sampled, where)
                if self.rollout_is == "metrics":
                    weights = None
        with pytracer.annotate("critic_update"):
            for rows in self.parts():
                error = values_of(self.critic, tokens[rows]) - returns[rows]
                learn(self.critic_optimizer, mean(error.square(), where[rows]))
        with pytracer.annotate("actor_update"):
            for rows in self.parts():
                ratio = (log_probs_of(self.actor, tokens[rows]) - log_probs[rows]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                gain = torch.minimum(ratio * advantages[rows], clipped * advantages[rows])
                if weights is not None:
                    gain = gain * weights[rows]
                learn(self.actor_optimizer, -mean(gain, where[rows]))
        return {"reward": reward.mean().item(), **metrics}

    def parts(self) -> list[slice]:
        """Return the rows of each mini-batch."""
        size = self.shape.batch // self.shape.mini_batches
        return [slice(begin, begin + size) for begin in range(0, self.shape.batch, size)]

    @torch.no_grad()
    def in_parts(
        self, compute: Callable[[Decoder, Tensor], Tensor], model: Decoder, tokens: Tensor
    ) -> Tensor:
        return torch.cat([compute(model, tokens[rows]) for rows in self.parts()])


def judge(texts: Texts, divergence: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reward of each response, and the return and the advantage of each token.

    A response is rewarded at its end. Divergence from the reference costs at each token.
    """
    where = texts.is_response
    reward = ((texts.tokens[:, 1:] % 2 == 0) * where).sum(1) / where.sum(1)
    ends = [sum(lengths) - 2 for lengths in zip(texts.prompts, texts.responses, strict=True)]
    rewards = -KL * divergence * where
    rewards[torch.arange(len(ends)), torch.tensor(ends)] += reward
    returns = rewards.flip(1).cumsum(1).flip(1)
    advantages = returns - values
    advantages = advantages - mean(advantages, where)
    return reward, returns, advantages / (mean(advantages.square(), where).sqrt() + 1e-6)


def learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    with pytracer.annotate("optimizer"):
        optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "npu"), default="auto")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rollout-is", choices=("off", "metrics", "applied"), default="off")
    parser.add_argument("--output", default="runs/rlhf", help="a directory for the snapshots")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.device == "auto":
        has_accelerator = torch.accelerator.is_available()
        options.device = torch.accelerator.current_accelerator().type if has_accelerator else "cpu"

    # The last step has no one-time allocations in it, such as the optimizers' states.
    with pytracer.Tracer(
        options.output, device=options.device, steps=[options.steps], discrete=True
    ) as tracer:
        trainer = Trainer(Shape(), options.device, options.rollout_is, options.seed)
        for step in range(1, options.steps + 1):
            metrics = trainer.step()
            tracer.step()
            print(f"step {step}:", "  ".join(f"{key} {metrics[key]:.4f}" for key in metrics))
    print(f"Drag a file of {options.output}/step{options.steps} onto pytorch.org/memory_viz.")


if __name__ == "__main__":
    main()
