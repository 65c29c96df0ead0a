"""Client of a running server: the state of its lifecycle, and the operator's pin.

Two kinds of key (SGLang 0.5.23 `srt/utils/auth.py`): `/server_info` is a NORMAL endpoint and wants
the server's `--api-key` where it has one; `/set_internal_state` is ADMIN_OPTIONAL and wants the
`--admin-api-key`, or the `--api-key` of a server without an admin key. A key goes into the header
and nowhere else; a message never holds it, nor the user part of an address.

A server with several data-parallel replicas is one server here: its status has all of them, and a
pin is taken by all or by none.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from spec_fsm.errors import ConfigError, SpecFsmError, one_line
from spec_fsm_sglang.address import NO_KEYS, Address, Keys

PIN_CODES: Final = {"auto": 0, "spec": 1, "plain": 2}
"""`/set_internal_state` takes numbers only (SGLang 0.5.23 `SetInternalStateReq`)."""
LARGEST_ANSWER: Final = 32 << 20
"""Bytes of an answer that are read at most. A replica's state has some 20 kB."""

T = TypeVar("T")
_WANTED: Final = {
    "/server_info": "--api-key",
    "/set_internal_state": "--admin-api-key, or its --api-key where it has no admin key",
}


class ServerProblem(SpecFsmError):
    """The server cannot be reached or does not do what was asked; the message is one line."""


class _Unauthorized(ServerProblem):
    """The server wants another key."""


class _Info(msgspec.Struct):
    internal_states: list[dict[str, Any]]


@dataclass(frozen=True)
class Client:
    """The server at `address`, asked with `keys`; `timeout` in seconds, for a whole answer."""

    address: Address
    keys: Keys = NO_KEYS
    timeout: float = 30.0

    @classmethod
    def of(cls, url: str, keys: Keys = NO_KEYS, timeout: float = 30.0) -> Client:
        """The client for the server at `url`; raises ConfigError for what is no address."""
        address = Address.of(url)
        if address.auth is not None and keys.all():
            raise ConfigError(
                f"--url {address} has a user part and a key is given: accepted is one of them, "
                "both go into the same header"
            )
        return cls(address, keys, timeout)

    def states(self) -> list[dict[str, Any]]:
        """The internal state of each replica's scheduler, as SGLang's `/server_info` shows it."""
        found = self._ask("GET", "/server_info", _Info).internal_states
        if not found:
            raise ServerProblem(f"{self.address} names no replica in its /server_info")
        return found

    def replicas(self) -> list[dict[str, Any] | None]:
        """What the lifecycle of each replica reports, in their order; None where it is off.

        Raises ServerProblem where there is no answer.
        """
        found = [state.get("spec_fsm") for state in self.states()]
        if not all(f is None or isinstance(f, dict) for f in found):
            raise ServerProblem(f"{self.address} answered with a status of another shape")
        return sorted(found, key=_number)

    def pin(self, mode: str, seconds: float | None = None) -> None:
        """Pin all replicas to `spec` or `plain`, or release them with `auto`; all or none.

        `seconds`: the pin ends by itself after that time, which the server counts.

        Raises ServerProblem where there is no answer, or when a replica does not take it; those
        that did are then as they were.
        """
        asked: dict[str, Any] = {"spec_fsm_pin": PIN_CODES[mode]}
        if seconds is not None:
            asked["spec_fsm_pin_for"] = seconds
        many = self._refuse_where_off()
        number = secrets.randbelow(1 << 52) + 1
        if many:
            asked["spec_fsm_pin_id"] = number
        try:
            taken = self._set(asked)
        except ServerProblem:
            if many:
                self._undo(number)
            raise
        if all(taken):
            return
        if len(taken) == 1:
            raise ServerProblem(f"{self.address} did not take the pin; its log says why")
        refused = self._refused(number, len(taken) - sum(taken), len(taken))
        if not any(taken):
            raise ServerProblem(f"{self.address} did not take the pin: {refused}")
        left = "" if self._undo(number) else "; taking it back from the others FAILED: pin again"
        raise ServerProblem(
            f"{self.address} did not take the pin: {refused}, so that none holds it{left}"
        )

    def _refuse_where_off(self) -> bool:
        """Whether there are several replicas; raises ServerProblem where one runs without us."""
        try:
            found = self.replicas()
        except _Unauthorized:
            # Only the key for the pin was given; the answer to the pin says the rest.
            return True
        off = [i for i, replica in enumerate(found) if replica is None]
        if len(off) == len(found):
            raise ServerProblem(f"{self.address} did not take the pin: it runs without spec-fsm")
        if off:
            names = ", ".join(map(str, _named(found, off)))
            raise ServerProblem(
                f"{self.address} was not pinned: {len(off)} of its {len(found)} replicas run "
                f"without spec-fsm ({names})"
            )
        return len(found) > 1

    def _refused(self, number: int, refused: int, replicas: int) -> str:
        """Which replicas do not hold pin `number`, in words, as far as the server tells."""
        text = f"{refused} of its {replicas} replicas refused"
        try:
            found = self.replicas()
        except ServerProblem:
            return text
        names = [i for i, r in enumerate(found) if r is None or r.get("pin_id") != number]
        return f"{text} ({', '.join(map(str, _named(found, names)))})"

    def _undo(self, number: int) -> bool:
        """Take pin `number` back where it was taken; whether the server answered."""
        try:
            self._set({"spec_fsm_pin_undo": number})
        except ServerProblem:
            return False
        return True

    def _set(self, asked: Mapping[str, Any]) -> list[bool]:
        taken = self._ask("POST", "/set_internal_state", list[bool], {"server_args": asked})
        if not taken:
            raise ServerProblem(f"{self.address} did not take the pin: no replica answered")
        return taken

    def _ask(self, method: str, path: str, shape: type[T], body: Any = None) -> T:
        """The answer of `path` as `shape`; raises ServerProblem for any other."""
        keys = self.keys.for_admin() if path == "/set_internal_state" else self.keys.for_normal()
        status, content = 0, b""
        for key in keys:
            status, content = self._send(method, path, key, body)
            if status != httpx.codes.UNAUTHORIZED:
                break
        if status == httpx.codes.UNAUTHORIZED:
            raise _Unauthorized(
                f"{self.address}{path} answered 401: it wants the server's {_WANTED[path]} "
                "(SPEC_FSM_API_KEY, SPEC_FSM_ADMIN_API_KEY or a file, see --help)"
            )
        if status != httpx.codes.OK:
            hint = ": a redirect is not followed, give its target" if 300 <= status < 400 else ""
            raise ServerProblem(f"{self.address}{path} answered {status}{hint}")
        try:
            return msgspec.json.decode(content, type=shape)
        except (ValueError, RecursionError) as error:
            raise ServerProblem(
                f"{self.address}{path} did not answer as SGLang does: {one_line(error)}"
            ) from None

    def _send(self, method: str, path: str, key: str | None, body: Any) -> tuple[int, bytes]:
        """One request; status code and content. Nothing of what was sent is in a message."""
        answer: queue.SimpleQueue[tuple[int, bytes] | ServerProblem] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answer.put(self._exchange(method, path, key, body))
            except ServerProblem as problem:
                answer.put(problem)

        # httpx bounds each read; a thread bounds all of them, those of the headers included.
        threading.Thread(target=ask, daemon=True).start()
        try:
            found = answer.get(timeout=self.timeout + 1)
        except queue.Empty:
            raise self._late() from None
        if isinstance(found, ServerProblem):
            raise found
        return found

    def _exchange(self, method: str, path: str, key: str | None, body: Any) -> tuple[int, bytes]:
        headers = {"Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        deadline, content = time.monotonic() + self.timeout, bytearray()
        url, auth, timeout = self.address.url + path, self.address.auth, self.timeout
        try:
            with httpx.stream(
                method, url, json=body, headers=headers, auth=auth, timeout=timeout
            ) as response:
                for part in response.iter_raw():
                    content += part
                    if len(content) > LARGEST_ANSWER:
                        limit = LARGEST_ANSWER >> 20
                        raise ServerProblem(f"{self.address}{path} answered above {limit} MiB")
                    if time.monotonic() > deadline:
                        raise self._late()
                return response.status_code, bytes(content)
        except httpx.TimeoutException:
            raise self._late() from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise ServerProblem(f"no answer from {self.address}: {self._hidden(error)}") from None

    def _late(self) -> ServerProblem:
        return ServerProblem(
            f"no answer from {self.address}: none that was whole within {self.timeout:g} s"
        )

    def _hidden(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        secret = [*self.keys.all(), *(self.address.auth or ())]
        # A word of three letters would be found in many a harmless text.
        return "request failed" if any(len(s) > 3 and s in text for s in secret) else one_line(text)


def _number(replica: Mapping[str, Any] | None) -> tuple[bool, float]:
    number = None if replica is None else replica.get("replica")
    return replica is None, number if isinstance(number, int) else 0


def _named(found: Sequence[Mapping[str, Any] | None], places: Sequence[int]) -> list[object]:
    """The replicas at `places` by their numbers, `?` for those that tell none."""
    told = {replica["replica"] for replica in found if replica and "replica" in replica}
    silent = iter([n for n in range(len(found)) if n not in told])
    return [(found[i] or {}).get("replica", next(silent, "?")) for i in places]


def off(address: object) -> ServerProblem:
    """The error for a server that runs without the plugin."""
    return ServerProblem(
        f"{address} runs without spec-fsm: start it with `spec-fsm serve`; if it was, its log "
        "says in one line why the plugin is off"
    )


def status(url: str, *, timeout: float = 30.0, keys: Keys = NO_KEYS) -> dict[str, Any]:
    """What the lifecycle of the one replica at `url` reports: mode, pin, counts, checks.

    Raises ServerProblem when there is no answer, when the server runs without the plugin, and
    where there are more replicas than one (`Client.replicas` has them all).
    """
    client = Client.of(url, keys, timeout)
    found = _one(client, client.replicas)
    if found is None:
        raise off(client.address)
    return found


def internal_state(url: str, *, timeout: float = 30.0, keys: Keys = NO_KEYS) -> dict[str, Any]:
    """The internal state of the one replica at `url`; raises ServerProblem for several."""
    client = Client.of(url, keys, timeout)
    return _one(client, client.states)


def _one(client: Client, ask: Callable[[], list[T]]) -> T:
    found = ask()
    if len(found) != 1:
        raise ServerProblem(f"{client.address} has {len(found)} replicas, not one")
    return found[0]


def pin(
    url: str,
    mode: str,
    *,
    seconds: float | None = None,
    timeout: float = 30.0,
    keys: Keys = NO_KEYS,
) -> None:
    """Pins the server at `url`, see `Client.pin`."""
    Client.of(url, keys, timeout).pin(mode, seconds)


__all__ = [
    "PIN_CODES",
    "Client",
    "ServerProblem",
    "internal_state",
    "off",
    "pin",
    "status",
]
