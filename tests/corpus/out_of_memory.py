"""Programs that run out of memory for a known reason, on a device of 2 GiB."""

import code
import collections
import functools
import gc
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from corpus.truth import DEVICE, FIXED, PART, REMEDY, truth
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EXPANDS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
runs_out = functools.partial(truth, mib=2048, helped=REMEDY)


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 256, layers: int = 6, words: int = 8192, room: int = 4096):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(room, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.checkpoints = False

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return x

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(tokens))


class ConvNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.classify = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.stem(x))
        for stage in self.stages:
            x = functional.relu(stage(x))
        return self.classify(x.mean((2, 3)))


def tokens(batch: int = 4, length: int = 128, words: int = 8192) -> torch.Tensor:
    return torch.randint(0, words, (max(batch // PART, 1), length), device=DEVICE)


def images(batch: int = 16, side: int = 32) -> torch.Tensor:
    return torch.randn(max(batch // PART, 1), 3, side, side, device=DEVICE)


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    scores = model(ids)
    return functional.cross_entropy(scores.flatten(0, 1), ids.flatten())


def gpt(**kinds: int) -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(**kinds).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@runs_out(
    *("kept growing", "nearly exhausted"),
    kept="trials[…]",
    do="of models and optimizers: drop what you no longer need",
)
def search_that_keeps_all() -> None:
    """Lists: a search for a learning rate keeps the model and the optimizer of each trial."""
    trials = []
    for rate in range(8):
        model = GPT(width=512, layers=4).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=10.0**-rate)
        for _ in range(2):
            loss = loss_of(model, tokens(2))
            update(optimizer, loss)
        trials.append((loss.item(), model, optimizer))
        if FIXED:
            trials = [min(trials, key=lambda trial: trial[0])]


@runs_out("nearly exhausted", do="GPT#2.requires_grad_(False)")
def teacher_with_gradients() -> None:
    """Gradients: those of a teacher that no optimizer steps, and its activations."""
    model, optimizer = gpt(layers=4)
    teacher = GPT(width=768, layers=12).to(DEVICE).requires_grad_(not FIXED)
    for _ in range(6):
        ids = tokens(10)
        scores, targets = model(ids), teacher(ids)
        loss = functional.kl_div(scores.log_softmax(-1), targets.softmax(-1))
        update(optimizer, loss)


@runs_out("leak", kept="running of running_loss()", do="Look at running")
def running_loss() -> None:
    """Leak: the running mean of a validation's loss keeps the graph of each step, in `running`."""
    model, optimizer = gpt()
    running = 0.0
    for _ in range(100):
        update(optimizer, loss_of(model, tokens()))
        validation = loss_of(model, tokens())
        running = 0.9 * running + (validation.item() if FIXED else validation)


class Trainer:
    def __init__(self) -> None:
        self.model, self.optimizer = gpt()
        self.logs: dict[str, list[object]] = {"loss": [], "grads": []}

    def training_step(self, ids: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, ids)

    def log_gradients(self) -> None:
        norms = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        self.logs["grads"].append({n: g.norm().item() if FIXED else g for n, g in norms.items()})

    def fit(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.training_step(tokens())
            self.optimizer.zero_grad()
            loss.backward()
            self.log_gradients()
            self.optimizer.step()


@runs_out("leak", kept="self.logs['grads'][…]", do="Look at self.logs['grads']")
def trainer_logs_gradients() -> None:
    """Leak: a trainer logs the gradients of each step, in `logs`."""
    Trainer().fit(100)


features: dict[str, list[torch.Tensor]] = collections.defaultdict(list)


@runs_out("leak", kept="features[…]", do="Look at features")
def hooks_keep_activations() -> None:
    """Leak: forward hooks keep the outputs of convolutions, in `features`."""
    model = ConvNet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and not FIXED:
            module.register_forward_hook(lambda _m, _i, out, name=name: features[name].append(out))
    for _ in range(200):
        update(optimizer, model(images(16, 64)).square().mean())


@functools.lru_cache(maxsize=4 if FIXED else None)
def causal_mask(length: int) -> torch.Tensor:
    return torch.ones(length, length, device=DEVICE).triu(1)


@runs_out("leak", kept="lru_cache of causal_mask", do="give it a small maxsize")
def masks_in_lru_cache() -> None:
    """Leak: an lru_cache without a limit keeps a mask for each length: causal_mask."""
    model, optimizer = gpt()
    for step in range(400):
        length = 1000 + step
        loss = loss_of(model, tokens(1, 64)) + causal_mask(length).mean()
        update(optimizer, loss)


@runs_out("leak", kept="teach.__closure__", do="Look at teach.__closure__")
def memo_in_a_closure() -> None:
    """Leak: a decorator's closure keeps the hidden states of each batch, in `memo`."""

    def memoised(function):
        memo: dict[int, torch.Tensor] = {}

        @functools.wraps(function)
        def call(key: int, ids: torch.Tensor) -> torch.Tensor:
            if key not in memo:
                memo[key] = function(key, ids)
            if FIXED:
                return memo.pop(key)
            return memo[key]

        return call

    teacher = GPT().to(DEVICE).eval()
    student, optimizer = gpt(layers=2)

    @memoised
    @torch.no_grad()
    def teach(key: int, ids: torch.Tensor) -> torch.Tensor:
        return teacher(ids)

    for number in range(300):
        ids = tokens()
        update(optimizer, functional.mse_loss(student(ids), teach(number, ids)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias_cache: dict[int, torch.Tensor] = {}
        self.project = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length not in self.bias_cache:
            self.bias_cache[length] = torch.randn(8, length, length, device=x.device)
        if FIXED and len(self.bias_cache) > 4:
            self.bias_cache.pop(next(iter(self.bias_cache)))
        return self.project(x) * self.bias_cache[length].mean()


@runs_out("leak", kept="bias_cache[…]", do="bias_cache[…]")
def module_caches_biases() -> None:
    """Leak: a module keeps a bias for each length that it has seen, in `bias_cache`."""
    model = nn.Sequential(Attention(), Attention()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(200):
        update(optimizer, model(torch.randn(2, 700 + step, 64, device=DEVICE)).mean())


@runs_out("exception", "leak", kept="failures[…] of errors_are_kept()", do="failures[…]")
def errors_are_kept() -> None:
    """Exception or leak: `failures` keeps exceptions, whose tracebacks keep forward passes."""
    model, optimizer = gpt()
    failures: list[object] = []

    def check(ids: torch.Tensor) -> torch.Tensor:
        scores = model(ids)
        if random.random() < 0.7:
            raise ValueError("a sequence without an end")
        return scores.mean()

    random.seed(0)
    for _ in range(200):
        try:
            update(optimizer, check(tokens()))
        except ValueError as error:
            failures.append(str(error) if FIXED else error)


@runs_out(
    "exception",
    kept="which the traceback of the handled exception keeps",
    do="outside the except",
)
def retry_with_half_a_batch() -> None:
    """Exception: the retry runs in the except of a batch that did not fit."""
    model, optimizer = gpt()
    ids = tokens(64, 256)
    for _ in range(3):
        update(optimizer, loss_of(model, tokens()))
    try:
        update(optimizer, loss_of(model, ids))
    except torch.OutOfMemoryError:
        if not FIXED:
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            for half in ids.chunk(4):
                update(optimizer, loss_of(model, half))
    if FIXED:
        optimizer.zero_grad()
        for half in ids.chunk(4):
            update(optimizer, loss_of(model, half))


@runs_out("leak", kept="memory (inside a deque, ", do="keep fewer items")
def replay_in_a_deque() -> None:
    """Leak: a replay memory on the device, whose deque has room for far more than fits."""
    policy = nn.Sequential(nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 8)).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters())
    memory: collections.deque = collections.deque(maxlen=50 if FIXED else 100_000)
    for _ in range(300):
        seen = torch.randn(512, 4096, device=DEVICE)
        memory.append((seen, policy(seen).detach()))
        state, _ = random.choice(memory)
        update(optimizer, policy(state).mean())


@runs_out("nearly exhausted", kept="state['model'][…]", do="Load the checkpoint with")
def checkpoint_on_the_device() -> None:
    """Exhausted: the loaded state of model and optimizer stays on the device, in `state`."""
    model, optimizer = gpt(width=768, layers=8)
    loss_of(model, tokens()).backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, "checkpoint.pt")
    del model, optimizer, state
    where = "cpu" if FIXED else "cuda:0"
    state = torch.load("checkpoint.pt", map_location=where, weights_only=True)
    model, optimizer = gpt(width=768, layers=8)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for _ in range(5):
        update(optimizer, loss_of(model, tokens(4, 448)))


@runs_out("nearly exhausted", do="foreach=False")
def foreach_update() -> None:
    """Exhausted: the states of AdamW fit, the temporary lists of its update do not."""
    model = GPT(width=1000, layers=8).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not FIXED)
    for _ in range(3):
        update(optimizer, loss_of(model, tokens(1, 64)))


@runs_out("nearly exhausted", do="MiB of the previous step's gradients")
def gradients_are_kept_as_zeros() -> None:
    """Exhausted: gradients of the step before are kept, and the batch needs their memory."""
    model = GPT(width=1024, layers=8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss_of(model, tokens(8, 256)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=FIXED)


@runs_out("nearly exhausted", do="an 8-bit or sharded optimizer saves")
def adamw_first_step() -> None:
    """Exhausted: parameters and gradients fit, the states of AdamW do not."""
    layers = 5 if FIXED else 11
    model, optimizer = gpt(width=1024, layers=layers)
    loss_of(model, tokens(1, 64)).backward()
    optimizer.step()


@runs_out("nearly exhausted", kept="losses[…] of accumulation_by_summing()", do="Look at losses[…]")
def accumulation_by_summing() -> None:
    """Exhausted: the graphs of 32 micro-batches live until one backward, by `losses`."""
    model, optimizer = gpt()
    for _ in range(3):
        losses = []
        for _ in range(32):
            loss = loss_of(model, tokens(8, 128)) / 32
            if FIXED:
                loss.backward()
            else:
                losses.append(loss)
        if losses:
            torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@runs_out("limit", do="set_per_process_memory_fraction. Sim")
def shared_card_with_a_limit() -> None:
    """Limit: half of the device is allowed, and the batch needs a bit more."""
    torch.cuda.set_per_process_memory_fraction(1.0 if FIXED else 0.5)
    neighbour_on_the_card()


@runs_out(
    "others",
    do="smi",
    env={"SIMULATED_OTHERS_MB": "1200"},
    helped={"SIMULATED_OTHERS_MB": "0"},
)
def neighbour_on_the_card() -> None:
    """Others: another process holds 1.2 GiB (SIMULATED_OTHERS_MB)."""
    model, optimizer = gpt()
    for _ in range(3):
        update(optimizer, loss_of(model, tokens(16, 256)))


@runs_out("larger input", "nearly exhausted", do="Limit the size of one step's input", env=EXPANDS)
def expandable_and_too_large() -> None:
    """Exhausted or larger input: a batch needs twice the memory; expandable segments are on."""
    model, optimizer = gpt()
    for batch in (8, 8, 8, 8 if FIXED else 48):
        update(optimizer, loss_of(model, tokens(batch, 256)))


@runs_out(
    "fragmented", kept="window (inside a deque", do="expandable_segments:True", helped=EXPANDS
)
def varying_lengths() -> None:
    """Fragmented: ragged blocks pin segments of lengths that do not come again."""
    random.seed(3)
    model = nn.Linear(256, 256).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    window: collections.deque = collections.deque(maxlen=26)
    for _ in range(300):
        length = random.randrange(30_000, 150_000)
        hidden = torch.relu(model(torch.randn(length, 256, device=DEVICE)))
        update(optimizer, hidden.mean())
        window.append(hidden.detach()[: length // 3].clone())
        del hidden


@runs_out(
    "too large",
    "nearly exhausted",
    kept="scores of loss_of()",
    do="Compute the loss in chunks",
    helped={"PART": "8"},
)
def checkpointing_is_not_enough() -> None:
    """Exhausted: with checkpointing on, the scores of the loss and the batch are too large."""
    model, optimizer = gpt(layers=8, words=32_000)
    model.checkpoints = True
    update(optimizer, loss_of(model, tokens(24, 512, 32_000)))


@runs_out("nearly exhausted", do="of this batch fits, checkpointing", helped={"PART": "12"})
def deep_forward() -> None:
    """Exhausted: the first forward pass of a deep model needs three times the device."""
    model, optimizer = gpt(width=512, layers=16)
    for _ in range(3):
        update(optimizer, loss_of(model, tokens(16, 512)))


@runs_out(
    "exception",
    kept="attempt(), which the last uncaught exception keeps",
    do="Run a cell that fails",
)
def failed_cell() -> None:
    """Exception: a cell of a session has failed, and keeps its memory until another one fails."""
    console = code.InteractiveConsole({"torch": torch})
    made = "[torch.empty(5 << 20, device='cuda') for _ in range(60)]"
    console.runsource(f"def attempt():\n    kept = {made}\n    1 / 0\n", symbol="exec")
    console.runsource("attempt()")
    if FIXED:
        console.runsource("1 / 0")
        gc.collect()
    torch.empty(400 << 20, device=DEVICE)


@runs_out("larger input", "nearly exhausted", do="under torch.no_grad()")
def validation_keeps_graphs() -> None:
    """Larger input: the validation after some steps has large batches, and keeps their graphs."""
    model, optimizer = gpt(layers=8)
    for _ in range(3):
        update(optimizer, loss_of(model, tokens(4, 512)))
    model.eval()
    with torch.set_grad_enabled(not FIXED):
        loss_of(model, tokens(16, 512))


@runs_out("nearly exhausted", "can't tell", which=0)
def two_trainings_in_threads() -> None:
    """Exhausted: two threads train at the same time, and each alone would fit."""

    def work() -> None:
        model, optimizer = gpt(width=512, layers=6)
        for _ in range(2):
            barrier.wait()
            loss = loss_of(model, tokens(12, 256))
            barrier.wait()
            update(optimizer, loss)

    count = 1 if FIXED else 2
    barrier = threading.Barrier(count, timeout=8)
    with ThreadPoolExecutor(count) as pool:
        for trained in [pool.submit(work) for _ in range(count)]:
            trained.result()


@runs_out("fragmented", do="expandable_segments:True", helped=EXPANDS)
def fails_in_backward() -> None:
    """Fragmented: the forward pass fits, and its backward does if free memory is joined."""
    model, optimizer = gpt(layers=5, width=512)
    for _ in range(2):
        update(optimizer, loss_of(model, tokens(15, 384)))


@runs_out("leak", kept="gallery[…]", do="Look at gallery[…]")
def gan_keeps_samples() -> None:
    """Leak: a GAN with two optimizers keeps the generated images of each step, in `gallery`."""
    make = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 3 * 64 * 64)).to(DEVICE)
    judge = ConvNet(8).to(DEVICE)
    of_make, of_judge = (torch.optim.Adam(model.parameters()) for model in (make, judge))
    gallery = []
    for _ in range(200):
        fake = make(torch.randn(256, 64, device=DEVICE)).view(-1, 3, 64, 64)
        update(of_judge, judge(fake.detach()).mean() - judge(images(64, 64)).mean())
        update(of_make, -judge(fake).mean())
        gallery.append(fake[0].detach().cpu() if FIXED else fake[0])


class Translator(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(1000, width), nn.Embedding(1000, width)
        self.encoder = nn.ModuleList(Block(width) for _ in range(3))
        self.decoder = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 1000)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, x = self.source(source), self.target(target)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x) + (x @ memory.transpose(1, 2)).softmax(-1) @ memory
        return self.head(x)


@runs_out("larger input", do="Limit the size of one step's input")
def summaries_of_long_articles() -> None:
    """Larger input: one article is far longer, and its encoder's scores grow with its square."""
    model = Translator().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for length in (300, 200, 400, 350, 250, 400 if FIXED else 3000, 300):
        source, target = tokens(4, length, 1000), tokens(4, 50, 1000)
        update(optimizer, model(source, target).mean())


@runs_out("leak", kept="history[…]", do="Look at history[…]")
def snapshots_of_weights() -> None:
    """Leak: each epoch's weights are copied to the device, in `history`."""
    model, optimizer = gpt(width=512, layers=4)
    history = []
    for epoch in range(60):
        for _ in range(4):
            update(optimizer, loss_of(model, tokens(2, 64)))
        state = {name: value.clone() for name, value in model.state_dict().items()}
        history.append((epoch, state))
        if FIXED:
            del history[:-3]


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 2048), nn.Tanh(), nn.Linear(2048, 4096))
        self.log_probs: list[torch.Tensor] = []

    def act(self, seen: torch.Tensor) -> torch.Tensor:
        chances = self.net(seen).log_softmax(-1)
        self.log_probs.append(chances)
        return chances.argmax(-1)


@runs_out("leak", kept="log_probs[…]", do="log_probs[…]")
def reinforce_never_clears() -> None:
    """Leak: the log-probabilities of all episodes are kept, in `log_probs`."""
    policy = Policy().to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(100):
        for _ in range(10):
            policy.act(torch.randn(512, 512, device=DEVICE))
        update(optimizer, torch.stack(policy.log_probs[-10:]).mean())
        if FIXED:
            policy.log_probs.clear()


class Fold:
    """One part of a cross-validation; its callback refers back to it."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16))).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.callback = self.stop_early

    def stop_early(self) -> None:
        """Do nothing: the bound method alone is the cycle."""

    def fit(self) -> None:
        for _ in range(3):
            update(self.optimizer, self.model(torch.randn(64, 1024, device=DEVICE)).mean())


@runs_out("leak", "garbage", kept="a reference cycle of ", do="gc.collect()")
def old_folds_are_garbage() -> None:
    """Garbage: reference cycles keep the models and states of earlier folds, of 192 MiB each."""
    gc.disable()  # as for speed; it is called too seldom in any case
    for _ in range(20):
        Fold().fit()
        if FIXED:
            gc.collect(0)


class Server:
    def __init__(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(512, 1536) for _ in range(4)).to(DEVICE)
        self.sessions: dict[int, list[torch.Tensor]] = {}

    @torch.inference_mode()
    def answer(self, session: int) -> None:
        x = torch.randn(1024, 512, device=DEVICE)
        kept = self.sessions.setdefault(session, [])
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            kept += (k.contiguous(), v.contiguous())
            x = x + functional.scaled_dot_product_attention(q, k, v)
        if FIXED:
            del self.sessions[session]


@runs_out("kept growing", kept="server.sessions[…]", do="Look at server.sessions[…]")
def sessions_of_a_server() -> None:
    """Kept: the keys and values of all sessions, in `server.sessions`."""
    server = Server()
    for session in range(300):
        server.answer(session)


@runs_out("kept growing", kept="streams[…]", do="Look at streams[…]")
def suspended_generators() -> None:
    """Kept: generators that are not closed keep the features of their video, in `streams`."""
    encode = nn.Linear(1024, 1024).to(DEVICE)

    def track() -> Iterator[torch.Tensor]:
        found = encode(torch.randn(3072, 1024, device=DEVICE)).detach()
        for frame in range(1000):
            yield found[frame].mean()

    streams = {}
    for video in range(300):
        streams[video] = track()
        next(streams[video])
        if FIXED:
            streams.pop(video).close()


@runs_out("leak", "nearly exhausted", kept="hidden of ", do="Look at hidden")
def hidden_state_is_not_detached() -> None:
    """Graphs: the hidden state of a text keeps the graphs of all its parts."""
    cell = nn.GRUCell(512, 512).to(DEVICE)
    hidden = torch.zeros(250, 512, device=DEVICE)
    for _ in range(400):
        for _ in range(10):
            hidden = cell(torch.randn(250, 512, device=DEVICE), hidden)
        cell.zero_grad()
        hidden.mean().backward(retain_graph=True)
        with torch.no_grad():
            for parameter in cell.parameters():
                if parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=0.01)
        if FIXED:
            hidden = hidden.detach()
