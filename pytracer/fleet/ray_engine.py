"""The engine that reads files as tasks of a Ray cluster.

A local path is listed on each node. A file that only some nodes have is read on one of them; any
node reads the others.
"""

import importlib
import itertools
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytracer.errors import PytracerError, optional
from pytracer.fleet.schema import ArrowTables
from pytracer.fleet.sources import Source, find_sources, is_url
from pytracer.fleet.summary import collect_file, unreadable

RETRIES = 3  # how often Ray runs a task again whose worker ended

_LEAST_TASKS = 16
_LISTING_S = 600.0
_CONNECT_S = 20.0

Found = tuple[list[Source], list[str]]  # what a path names on a node, and why it names nothing


class RayEngine:
    """The nodes of a Ray cluster."""

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        work: Callable[[Source], ArrowTables] = collect_file,
    ) -> None:
        """Connect to a cluster, or use the one that this process is connected to.

        Args:
            address: The address of the cluster. None: the running one, or else a new one on this
                machine.
            workers: The most tasks at a time. None: as many as the cluster has room for.
            work: The function that reads a file.

        Raises:
            PytracerError: Ray is not installed, or there is no such cluster.
        """
        (self._ray,) = optional("--engine ray needs", "ray")
        self._workers = workers
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            try:
                _check_reachable(address)
                self._ray.init(address=address, log_to_driver=False, logging_level="error")
            except Exception as error:  # of Ray, of gRPC, or of the network
                raise PytracerError(
                    f"cannot connect to Ray at {address or 'the default address'}: {error}; check "
                    "the address with `ray status` on the head node"
                ) from error
        self._work = self._ray.remote(work)
        self._strategies = importlib.import_module("ray.util.scheduling_strategies")

    def find(self, paths: Sequence[str]) -> tuple[list[Source], list[PytracerError]]:
        """Return the files that paths name on any node, and why other paths name none.

        Raises:
            PytracerError: The nodes cannot list files, as without pytracer.
        """
        sources, errors = find_sources([path for path in paths if is_url(path)])
        local = [path for path in paths if not is_url(path)]
        if not local:
            return sources, errors
        by_node = self._listed(local)
        for i, path in enumerate(local):
            found = {node: lists[i] for node, lists in by_node.items()}
            sources += _merged({node: each for node, (each, _) in found.items()}, self._hosts())
            if not any(each for each, _ in found.values()):
                reasons = [reason for _, why in found.values() for reason in why]
                errors.append(PytracerError(reasons[0] if reasons else f"no node has {path}"))
        return list({source.name: source for source in sources}.values()), errors

    def read(self, sources: Sequence[Source]) -> Iterator[ArrowTables]:
        """Yield the rows of each source as it is done."""
        ray = self._ray
        cpus = int(ray.cluster_resources().get("CPU", 1))
        most = self._workers or max(2 * cpus, _LEAST_TASKS)
        # A task may reserve no more than the smallest node has; 0: unknown.
        memory = [int(node["Resources"].get("memory", 0)) for node in self._alive()]
        room = min(memory, default=0)
        waiting, running = iter(sources), dict[Any, Source]()
        while True:
            for source in itertools.islice(waiting, most - len(running)):
                options: dict[str, Any] = {"num_cpus": 1, "max_retries": RETRIES}
                if source.needed_bytes and room:
                    options["memory"] = min(source.needed_bytes, room)
                if source.nodes:
                    node = source.nodes[hash(source.name) % len(source.nodes)]
                    options["scheduling_strategy"] = self._on(node)
                running[self._work.options(**options).remote(source)] = source
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for task in done:
                yield self._result(task, running.pop(task))

    def close(self) -> None:
        """Disconnect, unless the process was connected before. Ray ends the tasks."""
        if self._is_ours:
            self._ray.shutdown()

    def _result(self, task: Any, source: Source) -> ArrowTables:
        errors = self._ray.exceptions
        try:
            tables: ArrowTables = self._ray.get(task)
            return tables
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            reason = f"the worker that read the file ended {RETRIES + 1} times: {error}"
        except errors.RayTaskError as error:
            reason = repr(error.cause)
        except errors.RayError:
            reason = "the node that has the file was lost"
        return unreadable(source, f"{source.name}: {reason}")

    def _listed(self, paths: list[str]) -> dict[str, list[Found]]:
        """Return what each path names, by node. A node that is lost meanwhile is left out."""
        ray = self._ray
        listing = ray.remote(_find_each)
        options = {"num_cpus": 0, "max_retries": RETRIES}
        tasks = {
            listing.options(**options, scheduling_strategy=self._on(node)).remote(paths): node
            for node in self._hosts()
        }
        done, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=_LISTING_S)
        if late:
            raise PytracerError(
                f"{len(late)} of {len(tasks)} nodes did not list {paths[0]} within "
                f"{_LISTING_S:.0f} s: check the nodes with `ray status`"
            )
        found = {}
        for task in done:
            try:
                found[tasks[task]] = ray.get(task)
            except ray.exceptions.RayTaskError as error:
                raise PytracerError(
                    f"a node of the cluster cannot run pytracer ({error.cause!r}): install the "
                    "same version of pytracer and pyarrow on every node"
                ) from error
            except ray.exceptions.RayError:
                continue
        return found

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _hosts(self) -> dict[str, str]:
        return {node["NodeID"]: node["NodeManagerHostname"] for node in self._alive()}

    def _on(self, node: str) -> Any:
        return self._strategies.NodeAffinitySchedulingStrategy(node, soft=False)


def _find_each(paths: list[str]) -> list[Found]:
    """Return what each path names on this node. Runs as a task."""
    found = []
    for path in paths:
        sources, errors = find_sources([path])
        found.append((sources, [str(error) for error in errors]))
    return found


def _merged(by_node: dict[str, list[Source]], hosts: dict[str, str]) -> Iterator[Source]:
    """Yield the files of all nodes.

    A path that is the same file on all nodes is on a shared disk. If it is another file on another
    node, each of them is a source of its own, with the name of its host.
    """
    nodes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    first: dict[tuple[str, str], Source] = {}
    for node, sources in by_node.items():
        for source in sources:
            nodes[source.name][source.stamp].append(node)
            first.setdefault((source.name, source.stamp), source)
    for name, by_stamp in nodes.items():
        for stamp, having in by_stamp.items():
            source = first[name, stamp]
            if len(having) < len(by_node):
                source = replace(source, nodes=tuple(sorted(having)))
            if len(by_stamp) > 1:
                source = replace(source, name=f"{hosts[having[0]]}:{name}")
            yield source


def _check_reachable(address: str | None) -> None:
    """Raise an OSError at once if nothing listens at an address: Ray tries for minutes."""
    place = re.fullmatch(r"(?:ray://)?\[?(?P<host>[^/]+?)\]?:(?P<port>\d{1,5})", address or "")
    if place is not None:
        socket.create_connection((place["host"], int(place["port"])), _CONNECT_S).close()
