"""Registers the operators that SGLang reaches through `torch.ops.sgl_kernel`."""

from __future__ import annotations

import torch

from spec_fsm_sglang.cpu_ops.attention import decode_attention_cpu, extend_attention_cpu

_DECODE = (
    "(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, "
    "float key_scale, float value_scale, Tensor(c!) output, Tensor? key, Tensor? value, "
    "Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, "
    "Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, "
    "Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, float key_scale, float value_scale, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
    "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, "
    "Tensor? tree_mask, bool is_causal) -> ()"
)


def register() -> None:
    """Defines the two attention operators, unless this process has them already."""
    for schema, function in ((_DECODE, decode_attention_cpu), (_EXTEND, extend_attention_cpu)):
        if not hasattr(torch.ops.sgl_kernel, function.__name__):
            name = f"sgl_kernel::{function.__name__}"
            torch.library.define(name, schema)
            torch.library.impl(name, "cpu", function)
