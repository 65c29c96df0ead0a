"""What an engine must offer to be driven by a Lifecycle."""

from __future__ import annotations
