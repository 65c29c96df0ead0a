"""CPU reference operators: a stand-in `sgl_kernel`, so that SGLang's EAGLE worker runs on CPU.

    from spec_fsm_sglang import cpu_ops
    cpu_ops.enable()          # before anything imports sglang
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"
PACKAGES = Path(__file__).resolve().parents[2]


def enable() -> bool:
    """Makes SGLang run on CPU in this process and in every process it starts.

    Sets `SGLANG_USE_CPU_ENGINE=1` and, unless a real `sgl_kernel` with CPU operators loads, puts
    the stand-in first on `sys.path` and `PYTHONPATH`. True when the stand-in is in use. Raises
    RuntimeError when SGLang was imported before: it has chosen its device by then.
    """
    if "sglang.srt" in sys.modules and os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        raise RuntimeError("cpu_ops.enable() must run before anything imports sglang")
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    if _is_stand_in() or not _real_kernel_loads():
        _put_first()
        return True
    return False


def _is_stand_in() -> bool:
    loaded = getattr(sys.modules.get("sgl_kernel"), "__file__", None)
    return str(loaded or "").startswith(str(SITE))


def _real_kernel_loads() -> bool:
    """Whether the installed `sgl_kernel` imports here and brings the CPU operators."""
    import torch

    try:
        importlib.import_module("sgl_kernel")
        if hasattr(torch.ops.sgl_kernel, "decode_attention_cpu"):
            return not _is_stand_in()
    except Exception:  # a wheel built for another device fails in many ways
        pass
    for name in [m for m in sys.modules if m == "sgl_kernel" or m.startswith("sgl_kernel.")]:
        del sys.modules[name]
    return False


def _put_first() -> None:
    old = os.environ.get("PYTHONPATH", "")
    kept = [p for p in old.split(os.pathsep) if p and p != str(SITE)]
    if str(PACKAGES) not in kept:
        kept.append(str(PACKAGES))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *kept])
    sys.path[:] = [str(SITE), *(p for p in sys.path if p != str(SITE))]
