"""Test call sites against a synthetic program whose state after each event is known."""

import pickle
from collections import Counter
from typing import Any

import pytest
import reference_reader
from hypothesis import given
from hypothesis import strategies as st
from synthetic_program import CALL_SITES, STACKS, Program, operations, run

from pytracer.analysis.blocks import held_at
from pytracer.analysis.call_sites import UNKNOWN, CallChains, call_sites, frame_at
from pytracer.analysis.device_data import device_data
from pytracer.analysis.groups import who_holds
from pytracer.analysis.holders import Site, sites_at
from pytracer.reading import Snapshot, load
from pytracer.reading.snapshot import Frame


def sites_at_end(snapshot: Snapshot, top: int | None = None) -> list[Site]:
    return sites_at(device_data(snapshot, 1), None, top)


@given(operations, st.integers(0, 200), st.integers(0, 200))
def test_sites_equal_the_model(program: list[tuple[str, int, int]], lost: int, level: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    level = min(level, len(model.trace) - lost)
    snapshot = model.snapshot(lost)

    # WHEN the sites after any event are computed
    sites = sites_at(device_data(snapshot, 1), level)

    # THEN they equal the model's; a site is unknown only if the allocation is older than the trace
    # and the block is no longer live at the end
    sizes: Counter[Frame | None] = Counter()
    counts: Counter[Frame | None] = Counter()
    pending: Counter[Frame | None] = Counter()
    for address, block in model.moments[lost + level].items():
        in_the_end = model.alive.get(address)
        lives = in_the_end is not None and in_the_end.event == block.event
        site = CALL_SITES[block.stack] if lives or block.event >= lost else None
        sizes[site] += block.size
        counts[site] += 1
        pending[site] += block.size * block.pending
    assert {site.call_site: site.size_bytes for site in sites} == sizes
    assert {site.call_site: site.requested_bytes for site in sites} == sizes
    assert {site.call_site: site.count for site in sites} == counts
    assert {site.call_site: site.pending_bytes for site in sites} == pending
    assert [site.size_bytes for site in sites] == sorted(sizes.values(), reverse=True)


@given(operations)
def test_the_end_needs_no_trace(program: list[tuple[str, int, int]]) -> None:
    # GIVEN a snapshot with a trace
    snapshot = run(program).snapshot()
    # WHEN the sites of its end are computed, THEN they are those after the trace's last event
    last = sites_at(device_data(snapshot, 1), len(snapshot.traces[1]))
    assert set(sites_at_end(snapshot)) == set(last)


def test_rounded_blocks() -> None:
    # GIVEN a block that is larger than its request
    content = Program().content()
    block = {"address": 512, "size": 512, "requested_size": 7, "state": "active_allocated"}
    content["segments"] = [{"device": 1, "address": 512, "total_size": 512, "blocks": [block]}]
    # WHEN its site is computed, THEN it has both sizes
    (site,) = sites_at_end(reference_reader.convert(content))
    assert site == Site(None, 512, 7, 0, 1, ())


def test_the_stack_of_a_site_is_the_one_with_most_bytes() -> None:
    # GIVEN two stacks with the same call site, and an allocation at another site
    model = run([("alloc", 10, 0), ("alloc", 30, 1), ("alloc", 25, 0), ("alloc", 5, 2)])
    # WHEN the sites are computed
    first, second = sites_at_end(model.snapshot())
    # THEN the site has the bytes of both stacks, and the frames of the larger one
    assert first == Site(CALL_SITES[0], 65, 65, 0, 3, STACKS[0])
    assert second == Site(CALL_SITES[2], 5, 5, 0, 1, STACKS[2])


def test_top_limits_the_sites() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3)]).snapshot()
    assert [site.size_bytes for site in sites_at_end(snapshot, top=2)] == [30, 20]


def test_each_stack_has_a_call_site() -> None:
    # GIVEN all kinds of stacks, among them empty ones
    snapshot = run([("alloc", 1, stack) for stack in (3, 4, 2, 1, 0)]).snapshot()
    # WHEN their call sites are computed, THEN each is the expected frame
    stacks = snapshot.stacks
    found = {
        stacks.frames(i): frame_at(stacks, site)
        for i, site in enumerate(call_sites(stacks).tolist())
    }
    assert found == dict(zip(STACKS, CALL_SITES, strict=True))


SITE_PACKAGES = "/venv/lib/python3.11/site-packages"
UNWINDER = Frame("??", "torch::unwind::unwind()", 0)
MALLOC = Frame("", "c10::cuda::CUDACachingAllocator::Native::malloc(void**, unsigned long)", 0)
EMPTY = Frame("??", "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", 0)
SUM = Frame("VariableType_2.cpp", "at::_ops::sum_dim_IntList::call(at::Tensor const&)", 0)
NODE = Frame("??", "torch::autograd::generated::AddmmBackward0::apply(std::vector&&)", 0)
ENGINE = Frame("??", "torch::autograd::Engine::thread_main(std::shared_ptr const&)", 0)
THREAD = Frame("thread48.o", "execute_native_thread_routine", 0)
CALL = Frame("/build/Python-3.11.7/Objects/call.c", "_PyObject_MakeTpCall", 214)
EVAL = Frame("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault", 1038786)
PROGRAM = Frame("python3.11", "_start", 0)
FUNCTIONAL = Frame("/usr/include/c++/13/functional", "operator()", 590)
MODULE = Frame(f"{SITE_PACKAGES}/torch/nn/modules/linear.py", "forward", 134)
LIBRARY = Frame(f"{SITE_PACKAGES}/transformers/modeling.py", "forward", 77)
DEEPCOPY = Frame("/usr/lib/python3.11/copy.py", "deepcopy", 153)
IMPORT = Frame("<frozen importlib._bootstrap>", "_call_with_frames_removed", 241)
GENERATED = Frame("/tmp/torchinductor_me/ab/cab3.py", "call", 40)
GRAPH = Frame("<eval_with_key>.12", "forward", 5)
TRAIN = Frame("/home/me/train.py", "main", 5)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        # torch's own recorder with C++ frames, its default
        ([UNWINDER, MALLOC, EMPTY, CALL, MODULE, EVAL, TRAIN, EVAL, PROGRAM], TRAIN),
        ([UNWINDER, MALLOC, EMPTY, FUNCTIONAL, PROGRAM, LIBRARY, EVAL, TRAIN], LIBRARY),
        # Python's standard library between frames of torch
        ([MODULE, DEEPCOPY, MODULE, DEEPCOPY, TRAIN], TRAIN),
        ([MODULE, IMPORT, TRAIN], TRAIN),
        # code that torch generates
        ([GENERATED, MODULE, TRAIN], TRAIN),
        ([MODULE, GRAPH, MODULE, TRAIN], TRAIN),
        # no frame of the program: the innermost Python frame
        ([UNWINDER, MALLOC, MODULE, CALL, DEEPCOPY], MODULE),
        # no Python frame: autograd's node, else the operator, else the innermost frame
        ([UNWINDER, MALLOC, EMPTY, SUM, NODE], NODE),
        ([UNWINDER, MALLOC, EMPTY, SUM, EVAL], SUM),
        ([UNWINDER, MALLOC, SUM, ENGINE, THREAD], ENGINE),
        ([UNWINDER, Frame("??", "??", 0), THREAD], UNWINDER),
        # neither: the innermost frame outside the recorder and the allocator, else the innermost
        ([UNWINDER, MALLOC, Frame("??", "??", 0), EMPTY, EVAL], EMPTY),
        ([UNWINDER, MALLOC], UNWINDER),
        # programs that are not a file, or have no suffix
        *(
            ([MODULE, Frame(name, "f", 1), TRAIN], Frame(name, "f", 1))
            for name in [
                *("<stdin>", "<string>", "<ipython-input-3-a1b2>", "/tmp/ipykernel_7/123.py"),
                *("/usr/local/bin/train", "/home/me/lib/tools.py", "/home/me/python/torch.py"),
                "/home/me/include/train.py",
            ]
        ),
    ],
)
def test_the_call_site_is_the_programs(frames: list[Frame], expected: Frame) -> None:
    # GIVEN a block that was allocated by a stack, and other blocks before and after it
    # WHEN call sites are computed, THEN the stack's call site is the expected frame
    stacks = snapshot_of_stacks([UNWINDER], frames, [MODULE]).stacks
    sites = {stacks.frames(i): int(site) for i, site in enumerate(call_sites(stacks))}
    assert frame_at(stacks, sites[tuple(frames)]) == expected


@pytest.mark.parametrize(
    ("node", "name"), [("MulBackward0", "backward (MulBackward0)"), ("backward", "backward")]
)
def test_a_node_without_a_known_forward_call(node: str, name: str) -> None:
    # GIVEN a block of a thread without Python frames, of which a node, or only the thread, is known
    stacks = snapshot_of_stacks([], autograd_node=node).stacks
    # WHEN / THEN
    (site,) = {int(site) for site in call_sites(stacks)} - {UNKNOWN}
    assert frame_at(stacks, site) == Frame("", name, 0)


CHECKOUT = "/opt/pytorch/torch"
CALL_IMPL = Frame(f"{CHECKOUT}/nn/modules/module.py", "_call_impl", 1789)
ENGINE = Frame(f"{CHECKOUT}/autograd/graph.py", "_engine_run_backward", 825)
LINEAR = Frame(f"{CHECKOUT}/nn/modules/linear.py", "forward", 134)
FETCH = Frame(f"{CHECKOUT}/utils/data/_utils/fetch.py", "fetch", 54)
COLLATE = Frame(f"{CHECKOUT}/utils/data/_utils/collate.py", "collate_tensor_fn", 261)
NPU = Frame("/opt/pytorch/torch_npu/npu/utils.py", "synchronize", 8)
BENCHMARK = Frame("/opt/pytorch/benchmarks/run.py", "main", 3)


def snapshot_of_stacks(
    *stacks: list[Frame], metadata: dict[str, Any] | None = None, **keys: object
) -> Snapshot:
    """Return a snapshot with one block for each stack, which allocated it; `keys` are of each."""
    content = Program().content()
    blocks = [
        {"address": 512 * i, "size": 512, "requested_size": 512, "state": "active_allocated"}
        | {"frames": [frame._asdict() for frame in stack], **keys}
        for i, stack in enumerate(stacks)
    ]
    content["segments"] = [
        {"device": 1, "address": 0, "total_size": 512 * len(blocks), "blocks": blocks}
    ]
    content["pytracer"] = metadata or {}
    return load(pickle.dumps(content))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([LINEAR, CALL_IMPL, TRAIN], [TRAIN]),
        ([COLLATE, FETCH, TRAIN, BENCHMARK], [TRAIN, BENCHMARK]),
        ([LINEAR, ENGINE, NPU, BENCHMARK, TRAIN], [BENCHMARK, TRAIN]),
    ],
)
def test_a_torch_outside_of_site_packages_is_not_the_program(
    frames: list[Frame], expected: list[Frame]
) -> None:
    # GIVEN a stack with functions of a torch that is a source checkout, in a file that does not
    # name torch's folder
    snapshot = snapshot_of_stacks(frames)
    # WHEN the call site and its callers are looked for
    (site,) = sites_at_end(snapshot)
    (held,) = who_holds(snapshot, 1, at="end", by="line", depth=5)
    # THEN they are the program's frames, also those next to torch's folder
    (stack,) = held_at(device_data(snapshot, 1), None).group("stack")
    callers = CallChains(snapshot.stacks).caller_frames(*stack.key)
    assert [site.call_site, *callers] == expected
    assert held.groups[0].frames == expected


def test_the_file_names_torchs_folder() -> None:
    # GIVEN a stack whose frames of torch are of no function by which torch is recognised
    stack = [LINEAR, TRAIN]
    (without,) = sites_at_end(snapshot_of_stacks(stack))
    assert without.call_site == LINEAR
    # WHEN the file names torch's folder, THEN they are torch's
    folders = {"torch_folders": [CHECKOUT]}
    (site,) = sites_at_end(snapshot_of_stacks(stack, metadata=folders))
    assert site.call_site == TRAIN
    # AND a file whose name begins like torch's folder is the program's
    own = Frame(f"{CHECKOUT}_tools/train.py", "main", 4)
    (site,) = sites_at_end(snapshot_of_stacks([LINEAR, own], metadata=folders))
    assert site.call_site == own
    # AND a folder that is no text is ignored
    (site,) = sites_at_end(snapshot_of_stacks(stack, metadata={"torch_folders": [7, ""]}))
    assert site.call_site == LINEAR


def test_a_program_with_a_folder_named_torch() -> None:
    # GIVEN a program whose files are named like torch's, without torch's functions in them
    own = Frame("/home/me/torch/nn/modules/module.py", "train", 4)
    # WHEN call sites are computed, THEN they are the program's
    (site,) = sites_at_end(snapshot_of_stacks([LINEAR, CALL_IMPL, own]))
    assert site.call_site == own


def test_an_empty_snapshot() -> None:
    snapshot = Program().snapshot()
    assert sites_at(device_data(snapshot, 1), 0) == []
    assert sites_at_end(snapshot) == []
    assert call_sites(snapshot.stacks).tolist() == [-1]
