"""Stands in for FlashMLA's interface; see the package."""

from __future__ import annotations

from flash_mla import __getattr__ as __getattr__
