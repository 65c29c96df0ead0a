"""How the CPU operators come to stand in for `sgl_kernel`, here and in a server."""

from __future__ import annotations

import os
import subprocess
import sys

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.cpu_ops import server


def test_server_flags_name_the_backend_unless_the_caller_did() -> None:
    """Device and both phases' backends are added; a backend or device given is left alone."""
    both = ["--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"]
    assert server.as_flags(["--model-path", "x"]) == ["--device", "cpu", *both]
    assert server.as_flags(["--device=cpu"]) == both
    assert server.as_flags(["--device", "cpu", "--attention-backend", "torch_native"]) == []
    assert server.as_fields() == {
        "device": "cpu",
        "prefill_attention_backend": "intel_amx",
        "decode_attention_backend": "intel_amx",
    }


STAND_IN = """
from spec_fsm_sglang import cpu_ops
assert cpu_ops.enable() and cpu_ops.enable()
import subprocess, sys, torch, sgl_kernel
assert sgl_kernel.__file__.startswith(str(cpu_ops.SITE)), sgl_kernel.__file__
assert hasattr(torch.ops.sgl_kernel, "extend_attention_cpu")
assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")  # SGLang's test for AMX
from sgl_kernel import fused_experts
try:
    fused_experts(1)
except NotImplementedError as error:
    assert "fused_experts" in str(error)
else:
    raise AssertionError("an unknown operator must raise")
child = "import sgl_kernel, importlib.metadata as m; print(sgl_kernel.__file__); "
child += "print([e.value for e in m.entry_points(group='sglang.srt.plugins')])"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


def test_stand_in_is_found_here_and_in_child_processes() -> None:
    """After `enable()` this process and its children import the stand-in and see its plugin."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(cpu_ops.SITE) in done.stdout
    assert "spec_fsm_sglang.cpu_ops.hooks:activate" in done.stdout
