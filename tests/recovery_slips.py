"""Slips that violate a law, or are plain programming errors, at every place of a serving worker.

Each puts `strike` in front of, or behind, one call of ours. `strike` raises as often as the run
says; what the call does by itself stays right, so that whatever is answered must be right, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fault_kit import wrap
from fuzz.world import World

Strike = Callable[[], None]
PHASES = ("PLAIN_DECODE", "VERIFY", "DRAFT", "DRAFT_EXTEND", "SEED_EXTEND")


@dataclass(frozen=True)
class Slip:
    """A place. put: installs the slip.  error: what it raises.  plain: also while PLAIN is held."""

    put: Callable[[World, Strike], None]
    error: str
    plain: bool


SLIPS: dict[str, Slip] = {}


def slip(error: str = "ShapeViolation", *, plain: bool = True) -> Callable[..., Any]:
    """Names the decorated function as a slip."""

    def named(put: Callable[[World, Strike], None]) -> Any:
        SLIPS[put.__name__] = Slip(put, error, plain)
        return put

    return named


def raised(kind: str) -> Exception:
    """An error of the kind named."""
    import builtins

    import spec_fsm

    error: type[Exception] = getattr(spec_fsm, kind, None) or getattr(builtins, kind)
    return error("by the test")


def _before(owner: Any, name: str, strike: Strike, when: Callable[..., bool] | None = None) -> None:
    def around(right: Any, *args: Any, **kw: Any) -> Any:
        if when is None or when(*args):
            strike()
        return right(*args, **kw)

    wrap(owner, name, around)


def _after(owner: Any, name: str, strike: Strike) -> None:
    def around(right: Any, *args: Any, **kw: Any) -> Any:
        result = right(*args, **kw)
        strike()
        return result

    wrap(owner, name, around)


def _at_phase(phase: str, *, plain: bool) -> None:
    def put(world: World, strike: Strike) -> None:
        _before(world.worker.guard, "_check", strike, lambda found, *_: found.name == phase)

    SLIPS[f"guard_{phase.lower()}"] = Slip(put, "ShapeViolation", plain)


for _phase in PHASES:
    _at_phase(_phase, plain=_phase == "PLAIN_DECODE")


@slip("IllegalLaunch")
def plan(world: World, strike: Strike) -> None:
    """The lifecycle has no plan for the batch just chosen."""
    _before(world.fsm, "_decide", strike)


@slip("IllegalLaunch")
def boundary(world: World, strike: Strike) -> None:
    """The policy cannot be asked, for prefills neither."""
    _before(world.fsm, "boundary", strike)


@slip()
def before_choice(world: World, strike: Strike) -> None:
    """A check between two steps."""
    _before(world.fsm, "before_choice", strike)


@slip("AttributeError")
def before_run(world: World, strike: Strike) -> None:
    """Our own code, between choice and launch."""
    _before(world.fsm, "before_run", strike)


@slip("IllegalEvent")
def settled(world: World, strike: Strike) -> None:
    """Another result is due."""
    _before(world.fsm, "settled", strike)


@slip("KeyError")
def resolved(world: World, strike: Strike) -> None:
    """The tokens of a plain result cannot be resolved."""
    from spec_fsm_sglang import hooks

    _after(hooks, "plain_tokens", strike)


@slip("IllegalEvent")
def prefilled(world: World, strike: Strike) -> None:
    """A prefill's rows joined already."""
    _before(world.fsm, "prefilled", strike)


@slip("IllegalLaunch")
def launched(world: World, strike: Strike) -> None:
    """The launch is out when its plan turns out to be another's."""
    _after(world.fsm, "launched", strike)


@slip()
def inserted(world: World, strike: Strike) -> None:
    """What enters the prefix cache has no draft KV."""
    _before(world.fsm, "insertable", strike)


@slip("TypeError")
def left(world: World, strike: Strike) -> None:
    """Our own code, where a request gives its row back."""
    _before(world.fsm, "left", strike)


@slip("AttributeError")
def prepared(world: World, strike: Strike) -> None:
    """Our own code, with a plain launch half prepared."""
    from spec_fsm_sglang import plain

    _after(plain, "prepare", strike)


@slip("ValueError")
def plain_launched(world: World, strike: Strike) -> None:
    """SGLang's code, called by ours alone, once the plain forward ran."""
    from spec_fsm_sglang import plain

    _after(plain, "launch", strike)


@slip("IllegalLaunch", plain=False)
def seeds(world: World, strike: Strike) -> None:
    """A law of the rebuild."""
    _before(world.worker, "_seed", strike)


@slip("UnownedWrite")
def unowned(world: World, strike: Strike) -> None:
    """A field is written by nobody that may."""
    _before(world.worker, "_plain", strike)


__all__ = ["SLIPS", "Slip", "raised"]
