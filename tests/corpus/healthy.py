"""Programs that keep memory for a while or up to a limit, as trainings and servers do.

The last ones run out of memory on purpose, because one request is too large.
"""

import collections
import copy
import functools
import gc
import itertools
import logging
import os
import queue
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from corpus.out_of_memory import runs_out, update
from corpus.truth import DEVICE, FIXED, steps, truth
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.dlpack import from_dlpack, to_dlpack


def rows(count: int = 64, width: int = 128) -> torch.Tensor:
    return torch.randn(count, width, device=DEVICE)


def mlp(*widths: int) -> nn.Sequential:
    layers = ((nn.GELU(), nn.Linear(*pair)) for pair in itertools.pairwise(widths))
    return nn.Sequential(*list(itertools.chain(*layers))[1:]).to(DEVICE)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def train(optimizer: torch.optim.Optimizer, outputs: torch.Tensor) -> None:
    update(optimizer, outputs.float().square().mean())


@truth("healthy")
def masks_of_eight_lengths() -> None:
    """a dict of masks, one for each of eight lengths, which the first steps fill"""
    model, masks = mlp(64, 64), {}
    optimizer = adamw(model)
    for step in steps():
        length = 64 + 16 * (step % 8)
        if length not in masks:
            masks[length] = torch.ones(length, length, device=DEVICE).tril()
        x = torch.randn(4, length, 64, device=DEVICE)
        train(optimizer, (model(x) @ x.transpose(1, 2)) * masks[length])


@truth("healthy")
def cache_of_the_last_lengths() -> None:
    """an lru_cache of at most 32 tables, of ever new lengths"""

    @functools.lru_cache(maxsize=32)
    def table(length: int) -> torch.Tensor:
        return rows(length)

    model = mlp(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps(150):
        train(optimizer, model(table(200 + step)))


@truth("healthy")
def curriculum_that_keeps_nothing() -> None:
    """activations of lengths that grow until the end"""
    model = mlp(64, 256, 64)
    optimizer = adamw(model)
    for step in steps(100):
        train(optimizer, model(torch.randn(4, 32 + 8 * (step // 2), 64, device=DEVICE)))


@truth("healthy")
def replay_that_is_full() -> None:
    """a replay memory of at most 60 transitions, which is full after 60 of 200 steps"""
    model, replay = mlp(128, 64, 4), collections.deque(maxlen=60)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps(200):
        replay.append((rows(), torch.randn(64, device=DEVICE)))
        state, reward = random.choice(replay)
        train(optimizer, model(state).amax(-1) - reward)


class Ring:
    def __init__(self, size: int, width: int) -> None:
        self.states, self.at = torch.zeros(size, width, device=DEVICE), 0

    def add(self, states: torch.Tensor) -> None:
        self.states[self.at : self.at + len(states)] = states
        self.at = (self.at + len(states)) % len(self.states)


@truth("healthy")
def replay_made_at_once() -> None:
    """a replay memory that is one tensor, made before the first step"""
    model, replay = mlp(128, 4), Ring(64 * 100, 128)
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in steps(150):
        replay.add(rows())
        train(optimizer, model(replay.states[torch.randint(0, 64, (32,), device=DEVICE)]))


class Chat:
    """One request, with the keys and values of its tokens."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.cache = layer, torch.zeros(2, 8, 0, 64, device=DEVICE)

    def token(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.layer(x).chunk(3, -1)
        self.cache = torch.cat([self.cache, torch.stack([k, v])], 2)
        return ((q @ self.cache[0].transpose(1, 2)).softmax(-1) @ self.cache[1])[:, -1:]


@truth("healthy")
def chats_that_end() -> None:
    """keys and values of a request by concatenation, released with the request; no steps"""
    layer = mlp(64, 192)
    with torch.inference_mode():
        for number in range(60):
            chat, x = Chat(layer), torch.randn(8, 64 + number, 64, device=DEVICE)
            for _ in range(20):
                x = chat.token(x)


@truth("healthy")
def evaluation_every_twenty_steps() -> None:
    """the logits of an evaluation, in a list until its end"""
    model, accuracies = mlp(128, 256), []
    optimizer = adamw(model)
    for step in steps(130):
        train(optimizer, model(rows()))
        if step % 20 == 0:
            with torch.no_grad():
                logits = torch.cat([model(rows()) for _ in range(20)])
            accuracies.append(logits.argmax(-1).float().mean().item())
            del logits


@truth("healthy")
def best_weights() -> None:
    """one copy of the best weights, replaced every ten steps"""
    model, best = mlp(128, 128, 128), None
    optimizer = adamw(model)
    for step in steps(120):
        train(optimizer, model(rows()))
        if step % 10 == 1:
            best = copy.deepcopy(model.state_dict())
    del best


@truth("healthy")
def checkpoints_on_disk() -> None:
    """the weights and states of every 15 steps, of which three files stay"""
    model, files = mlp(256, 256), collections.deque()
    optimizer = adamw(model)
    for step in steps(90):
        train(optimizer, model(rows(64, 256)))
        if step % 15 == 0:
            files.append(f"{step}.pt")
            torch.save((model.state_dict(), optimizer.state_dict()), files[-1])
            if len(files) > 3:
                os.remove(files.popleft())


@truth("healthy")
def gradient_accumulation() -> None:
    """the gradients of eight batches, and the sum of their losses as a number"""
    model, running = mlp(128, 512, 128), 0.0
    optimizer = adamw(model)
    for micro in steps(320):
        loss = model(rows()).square().mean() / 8
        loss.backward()
        running += loss.item()
        if micro % 8 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@truth("healthy")
def losses_until_the_next_log() -> None:
    """detached losses, in a list that is logged and cleared every 25 steps"""
    model, window, log = mlp(128, 128), [], []
    optimizer = adamw(model)
    for _ in steps(210):
        loss = model(rows()).square().mean()
        update(optimizer, loss)
        window.append(loss.detach())
        if len(window) == 25:
            log.append(torch.stack(window).mean().item())
            window.clear()


@truth("healthy")
def episodes_that_last_longer() -> None:
    """log-probabilities with their graphs until an episode ends; each one is longer, and the last
    has not ended"""
    value, policy, logs, length = mlp(128, 1), mlp(128, 64, 4), [], 5
    optimizer = torch.optim.Adam(value.parameters())
    for _ in steps(220):
        x = rows()
        train(optimizer, value(x))
        logs.append(policy(x).log_softmax(-1)[:, 0].sum())
        if len(logs) == length:
            torch.stack(logs).sum().backward()
            with torch.no_grad():
                for p in policy.parameters():
                    p -= 0.1 * p.grad
            policy.zero_grad()
            logs.clear()
            length += 2


@truth("healthy")
def rollouts_of_ppo() -> None:
    """32 transitions of a rollout, which four epochs of minibatches use, and then the next one"""
    model = mlp(128, 64, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(12):
        with torch.no_grad():
            seen = [rows() for _ in range(32)]
            rollout = [{"seen": x, "log": model(x).log_softmax(-1)} for x in seen]
        for part in 4 * [rollout[i : i + 8] for i in range(0, 32, 8)]:
            x, log = (torch.cat([each[key] for each in part]) for key in ("seen", "log"))
            train(optimizer, (model(x).log_softmax(-1) - log).exp())


@truth("healthy")
def average_by_torch() -> None:
    """an average of the weights by AveragedModel, evaluated every ten steps"""
    model = mlp(128, 256, 128)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = adamw(model)
    for step in steps(100):
        train(optimizer, model(rows()))
        average.update_parameters(model)
        if step % 10 == 1:
            with torch.no_grad():
                average(rows(256)).mean().item()


@truth("healthy")
def adapters_of_eight_tenants() -> None:
    """the adapters of at most eight of 60 tenants; no steps"""
    base, adapters = [rows(256, 256) for _ in range(8)], collections.OrderedDict()

    @torch.no_grad()
    def generate(tenant: int) -> list[int]:
        if tenant in adapters:
            adapters.move_to_end(tenant)
        else:
            adapters[tenant] = [(rows(256, 16), rows(16, 256)) for _ in base]
            if len(adapters) > 8:
                adapters.popitem(last=False)
        x = rows(16, 256)
        for weight, (a, b) in zip(base, adapters[tenant], strict=True):
            x = x @ weight + x @ a @ b
        return x.argmax(-1).tolist()

    for call in range(240):
        generate(call * 7 % 60 if call % 3 else call % 5)


@truth("healthy")
def adapters_loaded_at_the_start() -> None:
    """40 adapters that a server needs, loaded before its first request; no steps"""
    weight = rows(256, 256)
    adapters = [(rows(256, 64), rows(64, 256)) for _ in range(40)]
    with torch.no_grad():
        for call in range(300):
            a, b = adapters[call % 40]
            x = rows(64, 256)
            (x @ weight + x @ a @ b).argmax(-1).sum().item()


@truth("healthy", mib=2000)
def data_loader_with_pinned_memory() -> None:
    """batches of a DataLoader with pinned memory, copied without blocking, for three epochs"""
    data = TensorDataset(torch.randn(2048, 256), torch.randint(0, 10, (2048,)))
    loader = DataLoader(data, batch_size=64, shuffle=True, pin_memory=True)
    model = mlp(256, 10)
    optimizer = adamw(model)
    for _ in range(3):
        for batch in loader:
            x, y = (each.to("cuda", non_blocking=True) for each in batch)
            update(optimizer, nn.functional.cross_entropy(model(x), y))


@truth("healthy")
def prefetch_of_four_batches() -> None:
    """a queue of at most four batches, which a thread fills"""
    model, ready = mlp(128, 128), queue.Queue(maxsize=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def produce() -> None:
        for _ in range(150):
            ready.put(rows())
        ready.put(None)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    while (batch := ready.get()) is not None:
        train(optimizer, model(batch))
    thread.join()


@truth("healthy", mib=2000)
def logs_of_numbers() -> None:
    """numbers and tensors of the CPU, of each step"""
    model, log, curves = mlp(256, 256), [], []
    optimizer = adamw(model)
    for _ in steps(300):
        outputs = model(rows(64, 256))
        train(optimizer, outputs)
        log.append(outputs.sum().item())
        curves.append(outputs.detach().mean(0).cpu())


@truth("healthy")
def truncated_backpropagation() -> None:
    """the hidden state of a recurrent network, detached after ten tokens"""
    cell, head = nn.GRUCell(64, 128).to(DEVICE), mlp(128, 10)
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()])
    state = rows()
    for _ in steps():
        loss = 0.0
        for _ in range(10):
            state = cell(rows(64, 64), state)
            loss = loss + head(state).square().mean()
        update(optimizer, loss)
        state = state.detach()


@truth("healthy")
def pool_of_images() -> None:
    """50 detached images of a GAN, of which one is replaced in each step"""
    make, judge, pool = mlp(32, 1024), mlp(1024, 64, 1), []
    of_make, of_judge = (torch.optim.Adam(model.parameters()) for model in (make, judge))
    for _ in steps(140):
        fake = make(rows(16, 32))
        update(of_make, -judge(fake).mean())
        if len(pool) == 50:
            pool.pop(random.randrange(50))
        pool.append(fake.detach())
        update(of_judge, judge(random.choice(pool)).mean() - judge(rows(16, 1024)).mean())


@truth("healthy", wrong=("verdict",))
def layers_unfrozen_one_by_one() -> None:
    """gradients and states of one more layer every ten steps"""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(10)]).to(DEVICE)
    optimizer = adamw(model.requires_grad_(False))
    for step in range(100):
        if step % 10 == 0:
            model[9 - step // 10].requires_grad_(True)
        model(rows(64, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@truth("healthy")
def teacher_without_gradients() -> None:
    """a teacher that runs under no_grad"""
    teacher, student = mlp(*[128] * 7).requires_grad_(False), mlp(128, 64, 128)
    optimizer = adamw(student)
    for _ in steps(80):
        x = rows()
        with torch.no_grad():
            target = teacher(x)
        train(optimizer, student(x) - target)


@truth("healthy")
def sweep_that_keeps_scores() -> None:
    """twelve trials, of which the scores stay"""

    def trial(width: int) -> float:
        model = mlp(128, width, 128)
        optimizer = adamw(model)
        for _ in range(10):
            loss = model(rows()).square().mean()
            update(optimizer, loss)
        return loss.item()

    scores = {width: trial(width) for width in range(64, 64 + 12 * 64, 64)}
    print(min(scores))


@truth("healthy")
def workspaces_of_four_threads() -> None:
    """a buffer for each of four threads of a server; no steps"""
    local = threading.local()

    def serve(_number: int) -> float:
        if not hasattr(local, "workspace"):
            local.workspace = torch.empty(4 << 20, dtype=torch.uint8, device=DEVICE)
        local.workspace[:64].zero_()
        return rows().sum().item()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(serve, range(200)))


def serve_with_errors(failed: Callable[[ValueError], object]) -> None:
    """Serve 300 requests, of which a fifth fails."""
    model = mlp(128, 512)

    @torch.no_grad()
    def handle(number: int) -> list[int]:
        outputs = model(rows(128))
        if number % 5 == 0:
            raise ValueError(f"request {number}")
        return outputs.argmax(-1).tolist()

    for number in range(300):
        try:
            handle(number)
        except ValueError as error:
            failed(error)


@truth("healthy")
def errors_as_text() -> None:
    """the texts of failed requests, in a log and a list; no steps"""
    errors = []
    logging.basicConfig(level=logging.CRITICAL)

    def failed(error: ValueError) -> None:
        logging.exception("failed")
        errors.append(str(error))

    serve_with_errors(failed)


@truth("healthy")
def last_three_errors() -> None:
    """the last three exceptions, with their tracebacks; no steps"""
    errors = collections.deque(maxlen=3)
    serve_with_errors(errors.append)


@truth("healthy", mib=2000)
def graphs_with_one_pool() -> None:
    """CUDA graphs of eight batch sizes, which share a pool"""
    pool, graphs = torch.cuda.graph_pool_handle(), {}
    for batch in (64, 48, 32, 24, 16, 8, 4, 2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            rows(batch << 10, 256)
            outputs = rows(batch)
        graphs[batch] = graph, outputs
    cache = rows(600 << 10, 256)
    for _ in range(100):
        rows(1024, 256)
    del cache


@truth("healthy", mib=2000)
def two_streams_made_once() -> None:
    """batches that one stream copies and the other one uses, with record_stream"""
    model, copies = mlp(512, 512), torch.cuda.Stream()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps(120):
        with torch.cuda.stream(copies):
            batch = torch.randn(512, 512).to(DEVICE, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        batch.record_stream(torch.cuda.current_stream())
        train(optimizer, model(batch))


@truth("healthy", mib=2000)
def two_pinned_buffers() -> None:
    """two pinned buffers, which take the outputs in turn"""
    model = mlp(512, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    buffers = [torch.empty(1024, 2048, pin_memory=True) for _ in range(2)]
    for step in steps(100):
        outputs = model(rows(1024, 512))
        buffers[step % 2].copy_(outputs.detach(), non_blocking=True)
        train(optimizer, outputs)
        torch.cuda.synchronize()


@truth("healthy")
def autocast_in_each_step() -> None:
    """autocast around the forward pass of each step"""
    model = mlp(128, 256, 128)
    optimizer = adamw(model)
    for _ in steps(100):
        with torch.autocast(DEVICE, torch.bfloat16):
            outputs = model(rows())
        train(optimizer, outputs)


@truth("healthy")
def capsules_that_are_consumed() -> None:
    """DLPack capsules, each of which is read at once, and the last five results; no steps"""
    model, window = mlp(128, 256), collections.deque(maxlen=5)
    with torch.no_grad():
        for _ in range(200):
            window.append(from_dlpack(to_dlpack(model(rows()))))


@truth("healthy")
def history_of_lbfgs() -> None:
    """the last 20 updates, which LBFGS needs"""
    model, x = mlp(128, 64, 1), rows()
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=20, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in steps(40):
        optimizer.step(closure)


@truth("healthy")
def sparse_gradients() -> None:
    """the sparse gradients of an embedding, which are cleared in each step"""
    table, head = nn.Embedding(5000, 128, sparse=True).to(DEVICE), mlp(128, 128)
    sparse, dense = torch.optim.SparseAdam(table.parameters()), adamw(head)
    for _ in steps(120):
        head(table(torch.randint(0, 5000, (16, 32), device=DEVICE))).square().mean().backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()


@truth("healthy")
def experts_that_are_rare() -> None:
    """the states of 16 experts, of which the last is used in step 60 for the first time"""
    experts = nn.ModuleList([nn.Linear(128, 128) for _ in range(16)]).to(DEVICE)
    optimizer = torch.optim.Adam(experts.parameters())
    for step in range(120):
        train(optimizer, experts[min(step // 4, 15) if step % 2 else 0](rows()))


class Child:
    def __init__(self, parent: "Parent", outputs: torch.Tensor) -> None:
        self.parent, self.outputs = parent, outputs


class Parent:
    def __init__(self, outputs: torch.Tensor) -> None:
        self.children = [Child(self, each) for each in outputs.chunk(64)]


@truth("healthy")
def cycles_that_are_collected() -> None:
    """reference cycles of each step, and a collector that is on"""
    model = mlp(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps(150):
        outputs = model(rows())
        Parent(outputs.detach())
        train(optimizer, outputs)


@truth("healthy")
def checkpointed_layers() -> None:
    """eight layers, each of which runs again in the backward pass"""
    layers = nn.ModuleList([mlp(128, 256, 128) for _ in range(8)])
    optimizer = adamw(layers)
    for _ in steps(40):
        x = rows().requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        train(optimizer, x)


@truth("healthy")
def prompts_that_become_longer() -> None:
    """keys and values of one prompt at a time, each of which is longer; no steps"""
    layer = mlp(64, 192)
    with torch.no_grad():
        for prompt in range(20):
            chat = Chat(layer)
            chat.token(torch.randn(8, 32 + 8 * prompt, 64, device=DEVICE))
            for _ in range(8):
                chat.token(torch.randn(8, 1, 64, device=DEVICE))


@truth("healthy")
def memory_bank() -> None:
    """the last 4,096 keys, by concatenation, and an encoder that follows the trained one"""
    query = mlp(128, 128, 64)
    encoder, bank = copy.deepcopy(query).requires_grad_(False), rows(4096, 64)
    optimizer = torch.optim.SGD(query.parameters(), lr=0.1, momentum=0.9)
    for _ in steps(120):
        x = rows()
        with torch.no_grad():
            for old, p in zip(encoder.parameters(), query.parameters(), strict=True):
                old.mul_(0.99).add_(p, alpha=0.01)
            keys = encoder(x)
        update(optimizer, (query(x) @ torch.cat([keys, bank]).T).logsumexp(-1).mean())
        bank = torch.cat([keys, bank[:-64]])


@truth("healthy")
def last_five_checkpoints() -> None:
    """the last five copies of the weights, one every eight steps"""
    model, last = mlp(256, 256), collections.deque(maxlen=5)
    optimizer = adamw(model)
    for step in steps(120):
        train(optimizer, model(rows(64, 256)))
        if step % 8 == 0:
            last.append({name: value.clone() for name, value in model.state_dict().items()})


@truth("healthy", "can't tell")
def replay_with_room() -> None:
    """a replay memory of at most 400 states, which has 240 at the end"""
    model, replay = mlp(128, 64, 4), collections.deque(maxlen=400)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps(240):
        replay.append(rows())
        train(optimizer, model(random.choice(replay)).amax(-1))


@truth("healthy")
def end_in_an_evaluation() -> None:
    """the logits of an evaluation, in a list; the program ends in the third one"""
    model = mlp(128, 256)
    optimizer = adamw(model)

    @torch.no_grad()
    def evaluate(batches: int) -> None:
        logits = []
        for batch in range(60):
            logits.append(model(rows()))
            if batch == batches:
                raise SystemExit
        torch.cat(logits).argmax(-1).float().mean().item()

    for step in steps():
        train(optimizer, model(rows()))
        if step % 20 == 0:
            evaluate(50 if step == 60 else 60)


@truth("healthy")
def bursts_in_a_queue() -> None:
    """the results of 200 requests in a queue, and then none; no steps"""
    model, waiting = mlp(128, 128), queue.Queue()
    with torch.inference_mode():
        for _ in range(4):
            for _ in range(200):
                waiting.put(model(rows()))
            while not waiting.empty():
                waiting.get().sum().item()


@truth("healthy")
def two_versions_of_weights() -> None:
    """the last two copies of the model, one every six steps"""
    model, versions = mlp(256, 256), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps(150):
        train(optimizer, model(rows(64, 256)))
        if step % 6 == 0:
            versions[step] = copy.deepcopy(model)
            for old in sorted(versions)[:-2]:
                del versions[old]


@truth("healthy")
def hooks_under_one_autocast() -> None:
    """hooks of the outputs with a detached norm, and autocast around all steps"""
    model = mlp(128, 256, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in steps(80):
            outputs = model(rows())
            scale = outputs.detach().float().norm()
            outputs.register_hook(lambda grad, scale=scale: grad / scale)
            train(optimizer, outputs)


@runs_out("nearly exhausted", "step needs more", "too large", do="half the batch", mib=900)
def search_for_a_batch() -> None:
    """Exhausted: a search tries batches that are too large, and then trains with one that fits."""
    model = mlp(512, 2048, 512)
    optimizer = adamw(model)
    batch = 4096 if FIXED else 65536
    while True:
        try:
            train(optimizer, model(rows(batch, 512)))
            break
        except torch.OutOfMemoryError:
            batch //= 2
        gc.collect()
        torch.cuda.empty_cache()
    for _ in steps(40):
        train(optimizer, model(rows(batch // 2, 512)))


@runs_out("too large", "larger input", kept="replay (inside a deque", mib=500)
def evaluation_of_a_full_replay() -> None:
    """Too large: the evaluation of a replay memory, which is full since step 100, as one batch."""
    model, replay = mlp(1024, 512), collections.deque(maxlen=100)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps(160):
        replay.append(rows(512, 1024))
        train(optimizer, model(replay[-1]))
    with torch.no_grad():
        for batch in replay if FIXED else [torch.cat(list(replay))]:
            model(batch).argmax(-1)


@runs_out("too large", kept="cache of ", do="compute in parts", mib=500)
def prompt_that_is_too_long() -> None:
    """Too large: a prompt of 20,000 tokens, beside a cache of 300 MiB that was made at once."""
    layer, cache = mlp(1024, 4096), rows(300, 1 << 18)

    @torch.inference_mode()
    def prefill(tokens: int) -> None:
        cache[0, :16] = layer(rows(tokens, 1024))[0, :16]

    for request in range(60):
        prefill(256 + 16 * (request % 10))
    for part in [2500] * 8 if FIXED else [20000]:
        prefill(part)


@runs_out("larger input", do="Limit the size of one step's input", mib=900)
def batch_that_doubles() -> None:
    """Larger input: a benchmark doubles the batch until it does not fit."""
    model = mlp(512, 2048, 512)
    optimizer = adamw(model)
    for batch in (256, 512, 1024, 2048) if FIXED else (256 << i for i in itertools.count()):
        for _ in range(4):
            train(optimizer, model(rows(batch, 512)))
