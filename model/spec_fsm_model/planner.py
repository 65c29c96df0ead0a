"""What the running code decides, asked of the running code: plans, policy and settled gaps.

None of it is written down a second time.  A real `Lifecycle`, `Policy` or `Ledger` is put into the
situation and asked; answers are remembered, because there are few situations.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from spec_fsm.ledger import Ledger
from spec_fsm.lifecycle import Lifecycle
from spec_fsm.plan import Plan, StashConfig
from spec_fsm.policy import Policy, PolicyConfig
from spec_fsm_model.world import PolicyState

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm._rules import State
    from spec_fsm.laws import Shape
    from spec_fsm.modes import Event, Mode
    from spec_fsm_model.world import Bounds, Request

LOADS = {"low": 1, "middle": 3, "high": 5}
"""One load on each side of the thresholds, and one between them."""
_DISABLE_ABOVE, _ENABLE_AT = 4, 2


def plans(
    shape: Shape, config: PolicyConfig, stash: StashConfig
) -> Callable[[Mode, int, bool], Plan]:
    """`Lifecycle.plan_decode` by mode (not DRAINING), positions missing and whether seeds are.

    Each is asked once.
    """
    lifecycle = Lifecycle(shape, Policy(config), stash)
    ledger = lifecycle.ledger
    ledger.join("r")

    @cache
    def plan(mode: Mode, gap: int, seeds_due: bool) -> Plan:
        lifecycle.mode = mode
        ledger.t_launched = ledger.t_settled = gap + 1
        ledger.f_launched = ledger.floor = 1
        ledger.seeds_at = -1 if seeds_due else gap + 1
        return lifecycle.plan_decode(1)

    return plan


class Planner:
    """Asks the code that runs, with the settings of `bounds`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._config = PolicyConfig(_DISABLE_ABOVE, _ENABLE_AT, bounds.dwell)
        self._stash = StashConfig(
            bounds.width, bounds.flush_every, bounds.slice_width, bounds.seed_ahead
        )
        # Bound methods cached by instance: the caches live and die with this planner.
        self.plan = plans(bounds.shape, self._config, self._stash)
        self.due = cache(self._due)
        self.fired = cache(self._fired)
        self._gap = cache(self._settled_gap)

    def _policy(self, state: PolicyState) -> Policy:
        policy = Policy(self._config)
        policy._dwell, policy._backoff, policy._failures, policy.pin = state
        return policy

    def _due(
        self, state: PolicyState, mode: Mode, load: int
    ) -> tuple[Event | None, int, PolicyState]:
        """The event due at a boundary, what DWELL_OVER waits for then, and the policy after."""
        policy = self._policy(state)
        event = policy.event(mode, load)
        return event, policy.waiting_for(mode), _read(policy)

    def _fired(self, state: PolicyState, event: Event, target: Mode) -> PolicyState:
        """The policy after `event` changed the mode to `target`."""
        policy = self._policy(state)
        policy.fired(event, target)
        return _read(policy)

    def settled_gap(self, request: Request, state: State) -> int:
        """`Ledger.settled_gap` of a running request, in positions."""
        lost = bool(request.launched.lost)
        return self._gap(request.base, request.point, lost, (state.t_settled, state.f_settled))

    def _settled_gap(self, base: int, point: int, lost: bool, settled: tuple[int, int]) -> int:
        ledger = Ledger(self._bounds.width)
        ledger.t_settled, ledger.f_settled = settled
        if lost:
            ledger._lost["r"] = (base, point)
        else:
            ledger._base["r"] = base
        return ledger.settled_gap("r")


def _read(policy: Policy) -> PolicyState:
    return PolicyState(policy._dwell, policy._backoff, policy._failures, policy.pin)


__all__ = ["LOADS", "Planner", "plans"]
