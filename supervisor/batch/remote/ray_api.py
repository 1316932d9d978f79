"""Ray, as far as a batch uses it. It is imported when it is chosen, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from supervisor.errors import WrongUsage

INSTALL = "pip install 'corral[ray]'"


class Options(Protocol):
    """A function or class that Ray knows."""

    def options(self, **options: object) -> Any:
        """The same with other options; its ``remote`` starts it."""
        ...


class Ray(Protocol):
    """The module. Source: Ray's API reference, "Ray Core"."""

    def init(self, **options: object) -> object:
        """Connect this process to a cluster, or start one."""
        ...

    def shutdown(self) -> None:
        """Undo `init`."""
        ...

    def remote(self, what: Callable[..., object]) -> Options:
        """Make a task of a function, or an actor of a class."""
        ...

    def put(self, value: object) -> object:
        """Give the cluster a value; returns its handle."""
        ...

    def get(self, ref: object, *, timeout: float | None = None) -> Any:
        """The values behind handles; blocks."""
        ...

    def wait(
        self, refs: Sequence[object], *, num_returns: int, timeout: float | None
    ) -> tuple[list[object], list[object]]:
        """Wait for values; blocks."""
        ...

    def cancel(self, ref: object, *, force: bool) -> None:
        """End a task; ``force``: with its process."""
        ...

    def nodes(self) -> list[dict[str, Any]]:
        """The machines."""
        ...

    def cluster_resources(self) -> Mapping[str, float]:
        """What all of them have."""
        ...

    def get_runtime_context(self) -> Any:
        """Who this process is."""
        ...


Stream = Iterator[object]
"""What a task yields, as handles."""


def refuse_without_ray() -> None:
    """Raise `WrongUsage`, which says how to install it, where there is no Ray."""
    if find_spec("ray") is None:
        raise WrongUsage(f"--backend ray needs Ray, which is not installed here: {INSTALL}")


def load_ray() -> Ray:
    """The module; it sends nobody any statistics. Raises `WrongUsage`."""
    refuse_without_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return cast("Ray", import_module("ray"))
    except ImportError as error:
        raise WrongUsage(f"--backend ray needs Ray, which can't be imported here ({error}): {INSTALL}") from None


def on_node(node: str) -> object:
    """What puts a task or an actor on that machine and no other."""
    found: Any = import_module("ray.util.scheduling_strategies")
    strategy: object = found.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return strategy
