"""Files of a large job, made from real recordings, with planted facts that a report must find.

Each file has the events of a base, which is a real recording, with other addresses, sizes, times
and names of call sites, and a few blocks of its own. `Plan` has the planted facts.
"""

import pickle
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot-1.6-cuda.pickle"
"""A small recording of the CUDA allocator."""

MIB = 2**20
BEGIN_S = 1_790_000_000
STEP_S = 10
RUN = "run7"

Site = tuple[str, str, int]
WEIGHTS: Site = ("/job/model.py", "build", 12)
EXPERTS: Site = ("/job/moe.py", "expert_buffer", 88)
BATCH: Site = ("/job/data.py", "collate", 40)
LEAK_OF_ALL: Site = ("/job/cache.py", "remember", 21)
LEAK_OF_ONE: Site = ("/job/log.py", "append", 7)
CACHE_FILL: Site = ("/job/kv.py", "grow", 30)
FAILED: Site = ("/job/attention.py", "scores", 55)

OTHER_SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 * MIB}
LEAK_OF_ALL_BYTES, LEAK_OF_ONE_BYTES = 4 * MIB, 6 * MIB
EXPERTS_BYTES, WEIGHTS_BYTES = 256 * MIB, 1024 * MIB
FAILED_BYTES = 512 * MIB


@dataclass(frozen=True)
class Plan:
    """What is planted in a run."""

    # ranks, steps: Each rank writes a file at the end of each step; the first step is 1.
    ranks: int
    steps: int
    seed: int = 0  # different seeds give other ranks, addresses and sizes
    # The bytes that some ranks hold more than the others, at `EXPERTS`.
    outliers: dict[int, int] = field(default_factory=dict)
    # The rank that also leaks at `LEAK_OF_ONE`. All ranks leak at `LEAK_OF_ALL`.
    leaking: int | None = None
    # The ranks that ran out of memory in the last step, in order of time. They have no file of that
    # step.
    cascade: tuple[int, ...] = ()
    other_settings: int | None = None  # the rank with `OTHER_SETTINGS`
    missing: int | None = None  # the rank without any file
    damaged: frozenset[tuple[int, int]] = frozenset()  # the rank and the step of files that are cut

    @property
    def special(self) -> set[int]:
        """The ranks whose files differ from those of other ranks."""
        others = {self.leaking, self.other_settings, self.missing} - {None}
        return {*self.outliers, *self.cascade, *others}  # type: ignore[arg-type]


def planned(ranks: int, steps: int, seed: int = 0, damaged: float = 0.01) -> Plan:
    """Return a plan with everything planted on ranks chosen by the seed, never 0 and the last."""
    rng = random.Random(seed)
    chosen = rng.sample(range(1, ranks - 1), 11)
    others = sorted(set(range(1, ranks - 1)) - set(chosen))
    return Plan(
        ranks=ranks,
        steps=steps,
        seed=seed,
        outliers={rank: (128 + 64 * i) * MIB for i, rank in enumerate(chosen[:3])},
        leaking=chosen[3],
        cascade=tuple(chosen[4:9]),
        other_settings=chosen[9],
        missing=chosen[10],
        damaged=frozenset(
            (rng.choice(others), rng.randint(1, steps))
            for _ in range(round(ranks * steps * damaged))
        ),
    )


class Content:
    """The content of a file that is made from a base."""

    def __init__(self, base: bytes, seed: int) -> None:
        """Load the base, with call sites and sizes that depend on the seed."""
        self.content = pickle.loads(base)
        self.trace: list[dict[str, Any]] = self.content["device_traces"][0]
        self.content["device_traces"][1:] = []  # devices that only have a mark
        self.metadata = self.content["pytracer"]
        self.metadata["devices"][1:] = []
        self.device = self.metadata["devices"][0]
        self._end = max(s["address"] + s["total_size"] for s in self.content["segments"])
        self._end = (self._end >> 21 << 21) + (1 << 30)
        self._new: list[dict[str, Any]] = []
        self._frames: dict[Site, list[dict[str, Any]]] = {}
        self._permute(random.Random(seed))

    def _permute(self, rng: random.Random) -> None:
        """Exchange the line numbers of call sites, and change the sizes within their rounding."""
        frames = {id(frame): frame for event in self.trace for frame in event["frames"]}
        lines = [frame["line"] for frame in frames.values()]
        rng.shuffle(lines)
        for frame, line in zip(frames.values(), lines, strict=True):
            frame["line"] = line
        less = [rng.randrange(8) for _ in range(97)]
        blocks = [block for s in self.content["segments"] for block in s["blocks"]]
        for row in self.trace:
            if row["action"] in ("alloc", "free_requested", "free_completed"):
                row["size"] = _permuted(row["size"], less)
        for block in blocks:
            if block["state"] != "inactive":
                block["requested_size"] = _permuted(block["requested_size"], less)

    def hold(self, size: int, site: Site, phase: str | None = None, category: str = "") -> None:
        """Add a block that is alive at the end.

        Args:
            size: A multiple of 2 MiB; the block fills a segment.
            site: The call site.
            phase: The phase of the allocation; None: the block is older than the trace.
            category: The category of the block.
        """
        address, self._end = self._end, self._end + size
        frames = self._stack(site)
        pool = {"stream": 0, "segment_pool_id": (0, 0)}
        block = {"address": address, "size": size, "requested_size": size, "frames": frames}
        kind = {"category": category or "unknown", "category_rule": "module" if category else ""}
        if not category:
            kind["category_rule"] = "no_owner"
        block |= {"state": "active_allocated", **kind}
        self.content["segments"].append(
            {
                "device": 0,
                "address": address,
                "total_size": size,
                **dict.fromkeys(("allocated_size", "active_size", "requested_size"), size),
                **pool,
                "segment_type": "large",
                "is_expandable": False,
                "frames": frames,
                "blocks": [block],
            }
        )
        if phase is not None:
            event = {"addr": address, "size": size, "stream": 0, "pool_id": (0, 0)}
            event |= {"time_us": self.trace[0]["time_us"], "frames": frames}
            event |= {"compile_context": "N/A", "user_metadata": phase}
            self._new += [{"action": "segment_alloc", **event}, {"action": "alloc", **event}]
        self.device["reserved_bytes"] += size
        self.device["free_bytes"] -= size
        self.device["process_bytes"] += size
        for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
            self.device["statistics"][name] += size
        for event in self.trace[-3:]:
            if event["action"] == "snapshot":
                event["size"] += size

    def run_out_of_memory(self) -> None:
        """Fill the device, and let an allocation fail."""
        fill = (self.device["free_bytes"] - 100 * MIB) // (2 * MIB) * 2 * MIB
        self.hold(fill, CACHE_FILL, "forward")
        free, frames = self.device["free_bytes"], self._stack(FAILED)
        self.trace.append(
            {
                "action": "oom",
                "device_free": free,
                "size": FAILED_BYTES,
                "stream": 0,
                "time_us": self.trace[-1]["time_us"] + 1,
                "pool_id": (0, 0),
                "frames": frames,
                "compile_context": "N/A",
                "user_metadata": "forward",
            }
        )
        self.metadata["oom"] = {
            "device": 0,
            "requested_bytes": FAILED_BYTES,
            "total_bytes": self.device["total_bytes"],
            "free_bytes": free,
        }

    def finished(self, step: int, *, is_window: bool) -> dict[str, Any]:
        """Return the content of the file of a step."""
        self.trace[:0] = self._new
        self.metadata["current_step"] = step
        if is_window:
            window = {"first": step, "last": step, "complete": True}
            self.metadata["window"] = {**window, "phase": None, "occurrence": None}
        self.metadata["role"] = None
        self.metadata["metadata"] = {}
        self.device["steps"] = [[step, 0]]
        self.device["recorded"] = len(self.trace)
        self.content["external_annotations"] = []
        return self.content

    def _stack(self, site: Site) -> list[dict[str, Any]]:
        names = ("filename", "name", "line")
        main: Site = ("/job/train.py", "main", 5)
        frames = [dict(zip(names, frame, strict=True)) for frame in (site, main)]
        return self._frames.setdefault(site, frames)


def _permuted(size: int, less: Sequence[int]) -> int:
    """Return a size that the allocator rounds to the same size."""
    return size - less[size % 97] if size % 512 == 0 and size else size


def write(
    content: dict[str, Any], path: Path, rank: int, *, begin_us: int, shift: int, cut: int
) -> None:
    """Write a file of a rank.

    Args:
        content: The content, which is changed.
        path: The file.
        rank: The process's rank; eight ranks share a host.
        begin_us: The time of the last event.
        shift: Added to all addresses, in units of 4 GiB, at most 4,096.
        cut: The number of bytes that are missing at the end.
    """
    content["pytracer"] |= {"rank": rank, "pid": 1000 + rank, "host": f"node-{rank // 8:015d}"}
    content["pytracer"]["written_ns"] = begin_us * 1000 + 500_000_000
    trace = content["device_traces"][0]
    later_us = begin_us - max(event["time_us"] for event in trace)
    for event in trace:
        event["time_us"] += later_us
        if event.get("addr"):
            event["addr"] += shift << 32
    for segment in content["segments"]:
        for row in (segment, *segment["blocks"]):
            row["address"] += shift << 32
    data = pickle.dumps(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) - cut])


def content_of(
    base: bytes, plan: Plan, step: int, rank: int, variant: int, *, oom: bool = False
) -> dict[str, Any]:
    """Return the content of a file of one rank."""
    made = Content(base, plan.seed)
    made.hold(WEIGHTS_BYTES, WEIGHTS, category="parameter")
    made.hold(EXPERTS_BYTES + plan.outliers.get(rank, 0), EXPERTS, "forward")
    made.hold(2 * MIB * (1 + variant), BATCH, "load")
    leaks = [(LEAK_OF_ALL, LEAK_OF_ALL_BYTES)]
    if rank == plan.leaking:
        leaks.append((LEAK_OF_ONE, LEAK_OF_ONE_BYTES))
    for site, size in leaks:
        for _ in range(1, step):
            made.hold(size, site)
        made.hold(size, site, "forward")
    if rank == plan.other_settings:
        made.content["allocator_settings"] |= OTHER_SETTINGS
    if oom:
        made.run_out_of_memory()
    return made.finished(step, is_window=not oom)


VARIANTS = 4


def make(folder: Path, plan: Plan) -> None:
    """Write all files of a run into `folder`."""
    base = GOLDEN.read_bytes()
    for step in range(1, plan.steps + 1):
        rng = random.Random(plan.seed * 1_000_003 + step)
        for rank in range(plan.ranks):
            if rank != plan.missing:
                _make_file(folder, base, plan, step, rank, rng)


def _make_file(
    folder: Path, base: bytes, plan: Plan, step: int, rank: int, rng: random.Random
) -> None:
    is_cascade = step == plan.steps and rank in plan.cascade
    begin_us = (BEGIN_S + STEP_S * step) * 10**6 + rng.randrange(10**6)
    name = f"torch_memory_rank{rank}_pid{1000 + rank}.pickle"
    path = folder / RUN / f"step{step}" / name
    if is_cascade:
        seconds = plan.cascade.index(rank) * 2
        begin_us = (BEGIN_S + STEP_S * step + seconds) * 10**6
        when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(begin_us // 10**6))
        path = folder / RUN / f"oom_{when}-{rank:06d}" / name.replace("rank", "oom_rank", 1)
    is_cut = (rank, step) in plan.damaged and not is_cascade
    write(
        content_of(base, plan, step, rank, rng.randrange(VARIANTS), oom=is_cascade),
        path,
        rank,
        begin_us=begin_us,
        shift=rng.randrange(4096),
        cut=rng.randrange(100, 2000) if is_cut else 0,
    )
