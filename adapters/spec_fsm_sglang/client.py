"""Talks to a running server: what state its lifecycle is in, and the operator's pin."""

from __future__ import annotations

from typing import Any, Final

import httpx

from spec_fsm.errors import SpecFsmError

PIN_CODES: Final = {"auto": 0, "spec": 1, "plain": 2}
"""`/set_internal_state` takes numbers only (SGLang 0.5.23 `SetInternalStateReq`)."""


class ServerProblem(SpecFsmError):
    """The server cannot be reached or does not do what was asked; the message is one line."""


def status(url: str, *, timeout: float = 30.0) -> dict[str, Any]:
    """What the lifecycle of the server at `url` reports: mode, pin, counts, checks.

    Raises ServerProblem when there is no answer, or when the server runs without the plugin.
    """
    state = internal_state(url, timeout=timeout)
    if "spec_fsm" not in state:
        raise ServerProblem(
            f"{url} runs without spec-fsm: start it with `spec-fsm serve`; if it was, its log "
            "says in one line why the plugin is off"
        )
    found: dict[str, Any] = state["spec_fsm"]
    return found


def internal_state(url: str, *, timeout: float = 30.0) -> dict[str, Any]:
    """The first scheduler's internal state, as SGLang's `/server_info` shows it."""
    states: list[dict[str, Any]] = _json(url, "GET", "/server_info", timeout)["internal_states"]
    return states[0]


def pin(url: str, mode: str, *, timeout: float = 30.0) -> None:
    """Pins the server at `url` to `spec` or `plain`, or releases it with `auto`.

    Raises ServerProblem when there is no answer, or when the server does not take the pin.
    """
    body = {"server_args": {"spec_fsm_pin": PIN_CODES[mode]}}
    updated = _json(url, "POST", "/set_internal_state", timeout, body)
    if not updated or not all(updated):
        raise ServerProblem(f"{url} did not take the pin: it runs without spec-fsm")


def _json(url: str, method: str, path: str, timeout: float, body: Any = None) -> Any:
    try:
        response = httpx.request(method, url.rstrip("/") + path, json=body, timeout=timeout)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as error:
        raise ServerProblem(f"{url}{path} answered {error.response.status_code}") from None
    except (httpx.HTTPError, ValueError) as error:
        raise ServerProblem(f"no answer from {url}: {error}") from None


__all__ = ["PIN_CODES", "ServerProblem", "internal_state", "pin", "status"]
