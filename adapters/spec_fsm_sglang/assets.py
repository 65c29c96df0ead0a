"""Where the shipped data lies: beside the code in a wheel, above it in a clone."""

from __future__ import annotations

from pathlib import Path

from spec_fsm.errors import SpecFsmError

_PACKAGE = Path(__file__).resolve().parent


class AssetMissing(SpecFsmError):
    """An asset is in neither place."""


def folder(name: str) -> Path:
    """The folder `assets/<name>`; raises AssetMissing when this installation has none."""
    for root in (_PACKAGE / "assets", _PACKAGE.parents[1] / "assets"):
        if (root / name).is_dir():
            return root / name
    raise AssetMissing(f"assets/{name} is not part of this installation: run from a clone")


__all__ = ["AssetMissing", "folder"]
