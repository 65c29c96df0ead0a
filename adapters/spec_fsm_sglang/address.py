"""Where a server is and what it wants to be asked with: addresses, keys, times; none is echoed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpx

from spec_fsm.errors import ConfigError, one_line, shown

_FORM: Final = "accepted are http://HOST[:PORT] and https://HOST[:PORT], an IPv6 host in brackets"
_LONGEST: Final = 4096
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_PIN_S: Final = 30 * 24 * 3600
"""As `operator_pin.LONGEST_S`, which needs SGLang: 30 days."""


@dataclass(frozen=True)
class Address:
    """The address of a server. `auth`: user and password of a proxy before it, or None.

    `str()` and `repr()` hold neither.
    """

    url: str
    auth: tuple[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.url

    @classmethod
    def of(cls, text: str) -> Address:
        """The address that `text` names, without its user part.

        Raises ConfigError, one line that shows neither user nor password.
        """
        safe = _without_secrets(text)
        if len(text) > _LONGEST or not text.isprintable() or not text.isascii() or " " in text:
            raise ConfigError(f"--url {safe} is no address: {_FORM}")
        try:
            url = httpx.URL(text)
            port = 80 if url.port is None else url.port
        except (httpx.InvalidURL, ValueError):
            raise ConfigError(f"--url {safe} is no address: {_FORM}") from None
        if url.scheme not in ("http", "https") or not url.host or not 1 <= port <= 65535:
            raise ConfigError(f"--url {safe} is no address: {_FORM}")
        if url.query or url.fragment or "?" in text or "#" in text:
            raise ConfigError(f"--url {safe} has a query or fragment: {_FORM}")
        user = url.userinfo.decode("ascii", errors="replace")
        name, _, password = user.partition(":")
        auth = (unquote(name), unquote(password)) if user else None
        return cls(str(url.copy_with(userinfo=b"")).rstrip("/"), auth)


def _without_secrets(text: str) -> str:
    """`text` for a message: no user part, no query, short, printable."""
    scheme, slashes, rest = text.partition("://")
    if not slashes:
        scheme, rest = "", text
    # The last @ counts: a password may hold any character, also those that end a host.
    rest = rest.rpartition("@")[2]
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    return one_line(shown(f"{scheme[:8]}{slashes}{rest}"))


@dataclass(frozen=True)
class Keys:
    """The keys of a server. Their `repr()` does not hold them.

    api: as the server's `--api-key`. admin: as its `--admin-api-key`.
    """

    api: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, api: str | None, admin: str | None) -> Keys:
        """Checked keys; raises ConfigError, which shows nothing of them."""
        return cls(_key("--api-key", api), _key("--admin-api-key", admin))

    def for_normal(self) -> tuple[str | None, ...]:
        """Keys for a NORMAL endpoint, in the order to try them."""
        return (self.api, self.admin) if self.api and self.admin else (self.api or self.admin,)

    def for_admin(self) -> tuple[str | None, ...]:
        """Keys for an ADMIN_OPTIONAL endpoint, in the order to try them."""
        return tuple(reversed(self.for_normal()))

    def all(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(key for key in (self.api, self.admin) if key)


NO_KEYS: Final = Keys()


def _key(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    # What an HTTP header carries unchanged. The value is not shown.
    if not 0 < len(value) <= _LONGEST or not re.fullmatch(r"[!-~]+", value):
        raise ConfigError(
            f"{name} is no key: accepted are 1 to {_LONGEST} printable ASCII characters "
            "without spaces"
        )
    return value


def read_key(path: Path | None, name: str) -> str | None:
    """The key in the file at `path`, its last line end left out; None without a path."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 3)
        return content.decode("ascii").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(f"{name} {one_line(str(path))}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{name} {one_line(str(path))} holds no key in ASCII") from None


def keys_of(
    given: tuple[str | None, str | None], files: tuple[Path | None, Path | None]
) -> Keys:
    """Keys (api, admin) as options or variables gave them, or from `files`.

    Raises ConfigError for a key that is given twice, is none, or cannot be read.
    """
    found = []
    for name, value, file in zip(("--api-key", "--admin-api-key"), given, files, strict=True):
        if value is not None and file is not None:
            raise ConfigError(f"{name} and {name}-file (or its variable) are both given")
        found.append(value if file is None else read_key(file, f"{name}-file"))
    return Keys.of(*found)


def seconds_of(text: str) -> float:
    """Seconds of a time as `30s`, `10m`, `2h`, `1d`; raises ConfigError for any other text."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    seconds = 0 if found is None else int(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= LONGEST_PIN_S:
        raise ConfigError(
            f"--for {one_line(shown(text))}: accepted are times as 30s, 10m, 2h, 1d, up to 30d"
        )
    return float(seconds)


def hide_arguments(secrets: tuple[str, ...]) -> None:
    """Overwrite this process's command line where it holds a secret, as far as the system can.

    Other users of the host can read a command line (`ps`), for a moment this one, too: a
    variable or a file is the better way to give a key.
    """
    try:
        command = Path(f"/proc/{os.getpid()}/cmdline").read_bytes().decode(errors="replace")
        if any(secret in command for secret in secrets):
            import setproctitle

            setproctitle.setproctitle("spec-fsm")
    except (ImportError, OSError):
        return


__all__ = [
    "LONGEST_PIN_S",
    "NO_KEYS",
    "Address",
    "Keys",
    "hide_arguments",
    "keys_of",
    "read_key",
    "seconds_of",
]
