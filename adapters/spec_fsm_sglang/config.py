"""The plugin's configuration: TOML for people, JSON in the environment for SGLang's processes.

`docs/configuration.md` documents every key; a test compares it with `Config`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from spec_fsm.errors import ConfigError, one_line, shown
from spec_fsm.policy import default_enable_at
from spec_fsm_sglang.stash_size import SHARE_OF_KV

ENV_VAR: Final = "SPEC_FSM_CONFIG"
"""Where SGLang's processes find the configuration; absent, the plugin does nothing."""

_WHOLE: Final = {
    "disable_above": (1, 1 << 16),
    "enable_at": (1, 1 << 16),
    "dwell": (0, 1 << 20),
    "stash_width": (2, 1 << 20),
    "flush_every": (0, 1 << 20),
    "slice_tokens": (1, 1 << 20),
    "max_violations": (1, 1 << 16),
}
"""Whole numbers, with the smallest and the largest accepted."""

LARGEST_SHARE: Final = 100.0
"""Of a KV pool: a test's pool may be smaller than the stash beside it."""
LARGEST_FILE: Final = 1 << 16
"""Bytes of a configuration file, and of the environment variable, at most."""
_LONGEST_PATH: Final = 4096

_CHOICES: Final = {
    "pin": ("auto", "spec", "plain"),
    "strategy": ("auto", "bulk", "extend", "warm", "cold"),
    "lost_rows": ("plain", "rerun"),
    "late_refusal": ("exit", "restart"),
    "on_violation": ("recover", "raise"),
}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an operator may set.

    disable_above: speculation stops when more requests than this decode.
    enable_at: it starts again at this many or fewer; None is three quarters of `disable_above`.
    dwell: scheduler iterations to stay in a mode before the load is looked at again.
    pin: `auto` follows the load; `spec` and `plain` hold a mode from the start.
    stash_width: hidden states kept per request, in tokens; a longer gap cannot be rebuilt. None
        is what `stash_share` of the KV pool's bytes holds (`stash.fit`).
    stash_share: part of the KV pool's bytes that the stash may take. A `stash_width` that takes
        more ends the start. None is 0.01 for a width that is fitted, and no limit for one that is
        named; `spec-fsm serve` always hands on a number.
    flush_every: plain steps between two bulk writes of draft KV; 0 writes on resume only.
    slice_tokens: draft KV entries written by one step at most while resuming.
    strategy: how draft KV is rebuilt; `auto` takes `bulk` where the draft has one layer. `warm`
        is `auto` at every step, `cold` never writes any: both for comparisons.
    lost_rows: what happens to requests whose gap cannot be rebuilt, once speculation is due again:
        `plain` waits for their end, `rerun` retracts them, so that they are prefilled again.
    late_refusal: what happens where only a loaded model shows that the plugin cannot be on: the
        command ends (`exit`), or starts again without it (`restart`).
    refuse_differing: answer requests whose output would depend on the mode (`docs/sampling.md`)
        with an error 400; otherwise they are only counted.
    trace: file for the trace, or None.
    checks: evaluate the invariants that look into tensors at every step (slow).
    on_violation: after a violated law `recover` retracts all requests, so that they are prefilled
        again, and goes on in PLAIN; `raise` ends the server, as `SPEC_FSM_STRICT=1` does.
    max_violations: with this many violations PLAIN stays until an operator pins `auto`; a request
        that was retracted for as many and meets one more fails.
    flight_dir: folder of the flight records; None is `SPEC_FSM_FLIGHT_DIR`, else the system's
        folder for temporary files.
    """

    disable_above: int
    enable_at: int | None = None
    dwell: int = 16
    pin: Literal["auto", "spec", "plain"] = "auto"
    stash_width: int | None = None
    stash_share: float | None = None
    flush_every: int = 16
    slice_tokens: int = 4096
    strategy: Literal["auto", "bulk", "extend", "warm", "cold"] = "auto"
    lost_rows: Literal["plain", "rerun"] = "plain"
    late_refusal: Literal["exit", "restart"] = "exit"
    refuse_differing: bool = False
    trace: str | None = None
    checks: bool = False
    on_violation: Literal["recover", "raise"] = "recover"
    max_violations: int = 3
    flight_dir: str | None = None

    @classmethod
    def load(cls, path: Path, **overrides: object) -> Config:
        """The configuration in the TOML file at `path`, with `overrides` in place of its values.

        Raises ConfigError, one line, when the file is missing or not TOML, or has unknown keys
        or bad values.
        """
        shown_path = one_line(str(path))
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
            if len(content) > LARGEST_FILE:
                accepted = f"accepted are files of up to {LARGEST_FILE} bytes"
                raise ConfigError(f"{shown_path} is too long: {accepted}")
            values = tomllib.loads(content.decode("utf-8"))
        except OSError as error:
            raise ConfigError(f"{shown_path}: {error.strerror}") from None
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:
            # A number too long to be read and tables nested too deep are no TOMLDecodeError.
            raise ConfigError(f"{shown_path} is not TOML: {one_line(error)}") from None
        try:
            return cls.of(values | overrides)
        except ConfigError as error:
            raise ConfigError(f"{shown_path}: {error.message}") from None

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Config:
        """The configuration made of `values`; raises ConfigError naming value and accepted ones."""
        unknown = sorted(set(values) - set(cls.__struct_fields__))
        if unknown:
            accepted = ", ".join(cls.__struct_fields__)
            named = ", ".join(map(one_line, unknown[:3])) + (", ..." if unknown[3:] else "")
            raise ConfigError(f"unknown key {named}: accepted are {accepted}")
        if values.get("disable_above") is None:
            raise ConfigError("disable_above is missing: accepted are whole numbers, 1 or more")
        for name, value in values.items():
            _check(name, value)
        config: Config = msgspec.convert(dict(values), cls)
        config._check_together()
        return config

    def _check_together(self) -> None:
        if self.enable_at is not None and self.enable_at > self.disable_above:
            raise ConfigError(
                f"enable_at is {self.enable_at}: accepted are whole numbers, "
                f"1 to disable_above ({self.disable_above})"
            )
        if self.stash_width is not None and self.flush_steps >= self.stash_width:
            raise ConfigError(
                f"flush_every is {self.flush_every}: accepted are whole numbers, "
                f"0 to stash_width - 1 ({self.stash_width - 1})"
            )

    def held_to_share(self) -> Config:
        """This configuration for a server: with the share that holds where none is named."""
        if self.stash_share is not None:
            return self
        return msgspec.structs.replace(self, stash_share=SHARE_OF_KV)

    @property
    def flush_steps(self) -> int:
        """`flush_every` as the strategy has it, in plain steps."""
        return 1 if self.strategy == "warm" else self.flush_every

    @property
    def enable_threshold(self) -> int:
        """`enable_at` with the default filled in, in requests."""
        return self.enable_at or default_enable_at(self.disable_above)

    def slice_width(self) -> int:
        """Tokens a request that one slice may cover, so that all rows fit `slice_tokens`.

        Reseeding starts at `enable_threshold` rows or fewer; a pin may start it with more, and
        then a slice is longer than asked for. At least 2: the plain step that carries a slice adds
        one token itself.
        """
        return max(2, self.slice_tokens // self.enable_threshold)

    def to_env(self) -> dict[str, str]:
        """The environment variable that hands this configuration to SGLang's processes."""
        return {ENV_VAR: msgspec.json.encode(self).decode()}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config | None:
        """What `to_env` put into `environ`; None when the plugin is not asked for.

        Raises ConfigError when the variable is not JSON or its values are bad.
        """
        text = environ.get(ENV_VAR)
        if not text:
            return None
        if len(text) > LARGEST_FILE:
            accepted = f"accepted are up to {LARGEST_FILE} characters"
            raise ConfigError(f"{ENV_VAR} is too long: {accepted}")
        try:
            values: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{ENV_VAR} is not a JSON object: {one_line(error)}") from None
        try:
            return cls.of(values)
        except ConfigError as error:
            raise ConfigError(f"{ENV_VAR}: {error.message}") from None


def _check(name: str, value: object) -> None:
    """Raises ConfigError when `value` cannot stand for the key `name`."""
    if value is None and name in ("enable_at", "stash_width", "stash_share", "trace", "flight_dir"):
        return
    if name in _WHOLE:
        low, high = _WHOLE[name]
        # A bool is an int to Python; `dwell = true` is a mistake.
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            _refuse(name, value, f"whole numbers, {low} or more, up to {high}")
        elif value > high:
            _refuse(name, value, f"whole numbers, {low} to {high}")
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            _refuse(name, value, ", ".join(_CHOICES[name]))
    elif name == "stash_share":
        _check_share(name, value)
    elif name in ("trace", "flight_dir"):
        _check_path(name, value)
    elif not isinstance(value, bool):
        _refuse(name, value, "true, false")


def _check_share(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= LARGEST_SHARE:  # type: ignore[operator]
        _refuse(name, value, f"numbers above 0, up to {LARGEST_SHARE:g}")


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_PATH or "\0" in value:
        _refuse(name, value, "file names")


def _refuse(name: str, value: object, accepted: str) -> None:
    raise ConfigError(f"{name} is {shown(value)}: accepted are {accepted}")


__all__ = ["ENV_VAR", "Config"]
