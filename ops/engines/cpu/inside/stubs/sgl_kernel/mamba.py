"""Slow stand-ins, in plain torch, for the CPU kernels that a gated-delta-net layer (Qwen3-Next) needs.

Reference maths, one token after another: for servers of the right shape (state slots, running limits, log lines, gauges), not
for speed. Argument lists are those of SGLang 0.5.11 and 0.5.23. Unlike the rest of `sgl_kernel`, these do run.
"""

import contextlib
import importlib
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def _register(schema: str, kernel: Callable[..., object]) -> None:
    _library.define(schema)
    _library.impl(schema.split("(", maxsplit=1)[0], kernel, "CPU")


def causal_conv1d_fn_cpu(  # noqa: D103
    x: Tensor,  # (channels, tokens of all sequences side by side)
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_states: Tensor | None = None,  # (slots, channels, width - 1), updated in place
    has_initial_state: Tensor | None = None,
    cache_indices: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    seq_lens_cpu: Tensor | None = None,
    **_: object,
) -> Tensor:
    taps = weight.reshape(weight.shape[0], -1).float()
    history = taps.shape[1] - 1
    out, begin = torch.empty_like(x), 0
    for number, length in enumerate(int(length) for length in seq_lens_cpu):
        slot, end = int(cache_indices[number]), begin + length
        known = has_initial_state is not None and bool(has_initial_state[number])
        before = conv_states[slot].float()[:, -history:] if known else torch.zeros(x.shape[0], history)
        padded = torch.cat([before, x[:, begin:end].float()], 1)
        convolved = F.conv1d(padded[None], taps[:, None, :], None if bias is None else bias.float(), groups=taps.shape[0])[0]
        out[:, begin:end] = _activated(convolved, activation).to(x.dtype)
        conv_states[slot] = padded[:, -history:].to(conv_states.dtype)
        begin = end
    return out


def causal_conv1d_update_cpu(  # noqa: D103
    x: Tensor,  # (batch, channels): one token of each sequence
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: Tensor | None = None,
    **_: object,
) -> Tensor:
    taps, slots = weight.reshape(weight.shape[0], -1).float(), conv_state_indices.long()
    window = torch.cat([conv_state[slots].float(), x.float()[:, :, None]], 2)
    convolved = (window[:, :, -taps.shape[1] :] * taps).sum(-1) + (0 if bias is None else bias.float())
    conv_state[slots] = window[:, :, 1:].to(conv_state.dtype)
    return _activated(convolved, activation).to(x.dtype)


def _activated(values: Tensor, activation: str | bool | None) -> Tensor:
    return F.silu(values) if activation in {"silu", "swish", True} else values


def chunk_gated_delta_rule_cpu(  # noqa: D103
    q: Tensor,  # (1, tokens of all sequences, heads, dim), like k and v
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,  # (sequences, heads, dim of v, dim of k)
    cu_seqlens: Tensor,
    **_: object,
) -> tuple[Tensor, Tensor, None]:
    heads, scale = v.shape[2], q.shape[-1] ** -0.5
    queries, keys = _prepared(q[0], k[0], heads)
    values, gates, betas = v[0].float(), g.reshape(-1, heads).float(), beta.reshape(-1, heads).float()
    out, ends, states = torch.empty_like(v), cu_seqlens.tolist(), []
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        state = initial_state[number].float()
        for t in range(begin, end):
            state, said = _step(state, queries[t] * scale, keys[t], values[t], gates[t], betas[t])
            out[0, t] = said.to(v.dtype)
        states.append(state)
    return out, torch.stack(states), None


def _prepared(q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of length 1, repeated for the heads of the values."""
    repeats = heads // q.shape[-2]
    return tuple(F.normalize(x.float(), dim=-1, eps=1e-6).repeat_interleave(repeats, -2) for x in (q, k))


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule; the state is (heads, dim of v, dim of k)."""
    state = state * gate.exp()[:, None, None]
    correction = (v - torch.einsum("hvk,hk->hv", state, k)) * beta[:, None]
    state = state + torch.einsum("hv,hk->hvk", correction, k)
    return state, torch.einsum("hvk,hk->hv", state, q)


def _gating(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    gate = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return gate.unsqueeze(0), torch.sigmoid(b.float()).unsqueeze(0)


def _decode(
    a_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,  # (slots, heads, dim of v, dim of k), updated in place
    initial_state_indices: Tensor,
    *_: object,
) -> Tensor:
    heads, scale = v.shape[2], q.shape[-1] ** -0.5
    queries, keys = _prepared(q[0], k[0], heads)
    gates, betas = (x.reshape(-1, heads) for x in _gating(a_log, a, b, dt_bias))
    out = torch.empty_like(v)
    for number in range(queries.shape[0]):
        slot = int(initial_state_indices[number])
        state = initial_state_source[slot].float()
        values = v[0, number].float()
        state, said = _step(state, queries[number] * scale, keys[number], values, gates[number], betas[number])
        initial_state_source[slot] = state.to(initial_state_source.dtype)
        out[0, number] = said.to(v.dtype)
    return out


def _rmsnorm_gated(x: Tensor, weight: Tensor, z: Tensor, eps: float) -> Tensor:
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    return (normed * F.silu(z.float())).to(x.dtype)


_register("fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)", _gating)
_register("fused_rmsnorm_gated_cpu(Tensor x, Tensor weight, Tensor z, float eps) -> Tensor", _rmsnorm_gated)
_register(
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, "
    "Tensor b, Tensor(a!) initial_state_source, Tensor initial_state_indices, Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, "
    "float softplus_beta=1.0, float softplus_threshold=20.0) -> Tensor",
    _decode,
)


def _shared_expert_gate(
    hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, output: Tensor, do_add: bool = False, **_: object
) -> None:
    gated = torch.sigmoid((hidden_states.float() * gate_weight.float()).sum(-1, keepdim=True)) * shared_output.float()
    output.copy_((output.float() + gated if do_add else gated).to(output.dtype))


def _use_these() -> None:
    """Send to the stand-ins what goes to Triton kernels on a CPU without AMX: gated norms, and 0.5.23's shared-expert gate."""
    for package in ("sglang.srt.layers.attention.fla", "sglang.kernels.ops.attention.fla"):
        for name in ("layernorm_gated", "fused_norm_gate"):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{package}.{name}")._use_cpu = True
    with contextlib.suppress(ImportError):
        importlib.import_module(
            "sglang.kernels.ops.elementwise.elementwise"
        )._launch_fused_gate_sigmoid_mul = _shared_expert_gate


_use_these()
