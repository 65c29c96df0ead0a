"""A set of decode graphs, with the state of their model runner that belongs to them alone.

A captured graph reads its inputs where they lay at capture: in buffers of its attention backend,
in the batch information of LoRA, in the logits buffer. SGLang keeps these as attributes of the
model runner and of objects behind it, one of each, because it captures one set of decode graphs.
A second set, captured beside the first, replaces them: the next launch of the first set then
fills buffers that its graphs do not read, and an adapter is lost without a word.

So the state is exchanged together with the graphs. Which attributes those are is observed, not
listed: whatever building a set of graphs changes on the model runner, its LoRA manager or its
LoRA backend is the new set's, and the old values come back before anything else runs. There may
be any number of sets; the one in force while no `GraphSet` is entered is SGLang's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

logger = logging.getLogger("spec_fsm")

_ABSENT: Final = object()
"""Stands for an attribute that a set does not have."""

_Place = tuple[dict[str, Any], str, Any]
"""Namespace of an owner, attribute, value."""

_Graphs = TypeVar("_Graphs")


class GraphSet:
    """Decode graphs and their state; in force inside `with graph_set:`, which may hold another's.

    graphs: SGLang's runner of the graphs, None for a set that runs its launches eagerly.
    """

    __slots__ = ("_places", "graphs")

    def __init__(self, graphs: Any, places: list[_Place]) -> None:
        """`places`: what this set wants where."""
        self.graphs = graphs
        self._places = [list(place) for place in places]

    @property
    def attributes(self) -> list[str]:
        """Names of what is exchanged."""
        return [name for _, name, _ in self._places]

    def __enter__(self) -> GraphSet:
        self._exchange()
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        """Put this set's values in place and keep what was there; the second time, back again.

        What a launch changed of its set's values (LoRA's last batch) stays with the set.
        """
        for place in self._places:
            namespace, name, value = place
            place[2] = namespace.get(name, _ABSENT)
            _put(namespace, name, value)


def eager(runner: Any) -> GraphSet:
    """The set of launches that run without a graph, beside graphs of another width.

    Neither those graphs nor their LoRA batch information may be found by such a launch.
    """
    places: list[_Place] = [(vars(runner), "decode_cuda_graph_runner", None)]
    manager = getattr(runner, "lora_manager", None)
    if manager is not None:
        # Without it SGLang prepares LoRA for a launch that runs no decode graph.
        places.append((vars(manager), "max_bs_in_decode_cuda_graph", _ABSENT))
    return GraphSet(None, places)


def capture(runner: Any, build: Callable[[], _Graphs], tokens: int) -> GraphSet:
    """The set that `build` captures on `runner`, whose state is as before when this returns.

    `tokens`: the most that a launch of the set holds. Raises what `build` raises; the state is
    as before then, too.
    """
    spaces = [_Space(vars(owner)) for owner in _owners(runner)]
    places: list[_Place] = []
    try:
        _make_moe_lora_buffers(runner, tokens)
        graphs: Any = build()
    finally:
        for space in spaces:
            places += space.take_back()
    own = {"decode_cuda_graph_runner": graphs, "attn_backend": graphs.attn_backend}
    places = [place for place in places if place[1] not in own]
    places += [(vars(runner), name, value) for name, value in own.items()]
    found = GraphSet(graphs, places)
    logger.debug("spec-fsm: exchanged with these graphs: %s", ", ".join(found.attributes))
    return found


def _owners(runner: Any) -> Iterator[Any]:
    """Objects whose attributes a runner of decode graphs may set."""
    yield runner
    manager = getattr(runner, "lora_manager", None)
    if manager is not None:
        yield manager
        yield manager.lora_backend


def _make_moe_lora_buffers(runner: Any, tokens: int) -> None:
    """Routing buffers of MoE adapters for `tokens`, which SGLang shares between all graphs.

    It sizes them once for the graphs it captures, which may hold fewer tokens, and frees them
    when it finds them too large, under the graphs that read them.
    """
    manager = getattr(runner, "lora_manager", None)
    if manager is None:
        return
    arguments = manager.lora_backend._moe_cg_buffer_init_args
    if arguments is not None:
        manager.lora_backend.init_cuda_graph_moe_buffers(tokens, *arguments)


class _Space:
    """The attributes of one object as they were, containers with what they held."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = dict(namespace)
        self._contents = {
            name: value.copy()
            for name, value in namespace.items()
            if type(value) in (dict, list, set)
        }

    def take_back(self) -> Iterator[_Place]:
        """Restore every attribute; yields those that had changed, with their new values."""
        for name in self._before.keys() | self._namespace.keys():
            old = self._before.get(name, _ABSENT)
            new = self._namespace.get(name, _ABSENT)
            held = self._contents.get(name)
            altered = held is not None and not _alike(old, held)
            if new is old and not altered:
                continue
            if altered:
                # Emptied or refilled in place: others may hold on to the container.
                new = old.copy() if new is old else new
                _refill(old, held)
            yield self._namespace, name, new
            _put(self._namespace, name, old)


def _put(namespace: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        namespace.pop(name, None)
    else:
        namespace[name] = value


def _alike(one: Any, other: Any) -> bool:
    """Whether two containers hold the very same objects: tensors have no useful equality."""
    if isinstance(one, set):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)


__all__ = ["GraphSet", "capture", "eager"]
