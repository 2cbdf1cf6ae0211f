"""Attention as one fused operation, wherever a step is recorded.

Which kernels `scaled_dot_product_attention` takes depends on the device: on the meta device its
definition, with tensors of queries times keys, on a CPU a kernel without a count of FLOPs, on a GPU
a fused kernel. So calls of it are replaced by an operator of our own. Its backward keeps what that
of fused kernels keeps: the inputs, the output and the logarithm of each row's sum. That holds for
every dtype, mask, dropout and number of heads.

FLOPs are those of `torch.utils.flop_counter`: two products forward and five backward, all of
queries times keys. `is_causal` or a mask does not lower them, as it does not there.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autosync.graph import ATTENTION


@torch.library.custom_op("autosync::scaled_dot_product_attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    shares_keys: bool,
) -> tuple[Tensor, Tensor]:
    """The output `(..., heads, queries, width of a value)` and a float32 tensor `(..., heads,
    queries)` in place of the logarithms of sums, whose values are never read.

    shares_keys: several heads of the query share a head of key and value.
    """
    with torch._C.DisableTorchFunction():
        out = functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scale, enable_gqa=shares_keys
        )
    return out.clone(), out.new_empty(out.shape[:-1], dtype=torch.float32)


@attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    shares_keys: bool,
) -> tuple[Tensor, Tensor]:
    shape = _output_shape(query, key, value, mask, shares_keys)
    if len(shape) == 4:  # fused kernels write a token's heads side by side
        batch, heads, queries, width = shape
        out = query.new_empty(batch, queries, heads, width).transpose(1, 2)
    else:
        out = query.new_empty(shape)
    return out, query.new_empty(shape[:-1], dtype=torch.float32)


def _output_shape(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shares_keys: bool
) -> tuple[int, ...]:
    """Raises ValueError where torch refuses the shapes as well."""
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError("query, key and value of attention have at least two dimensions")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"attention of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)}: widths of query and key differ, or numbers of keys and values"
        )
    outer = [list(each.shape[:-2]) for each in (query, key, value)]
    if shares_keys:
        if min(map(len, outer)) == 0 or any(outer[0][-1] % each[-1] for each in outer[1:]):
            raise ValueError(
                f"attention of {query.shape[-3:-2]} heads that share {key.shape[-3:-2]} of keys: "
                "not a multiple"
            )
        for each in outer[1:]:
            each[-1] = outer[0][-1]
    batch = torch.broadcast_shapes(*outer)
    if mask is not None:
        scores = (*batch, query.shape[-2], key.shape[-2])
        if torch.broadcast_shapes(mask.shape, scores) != scores:
            raise ValueError(f"a mask {tuple(mask.shape)} does not fit attention scores {scores}")
    return (*batch, query.shape[-2], value.shape[-1])


@torch.library.custom_op("autosync::scaled_dot_product_attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    sums: Tensor,
    causal: bool,
    scale: float | None,
    shares_keys: bool,
    of_mask: bool,
) -> list[Tensor]:
    """The gradients of query, key and value, and of the mask where `of_mask`; without dropout."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    heads = query.shape[-3] // key.shape[-3] if shares_keys else 1
    keys, values = (_repeated(each, heads) for each in (key, value))
    scores = query @ keys.transpose(-2, -1) * factor
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if hidden else scores + mask
    weights = torch.softmax(scores, -1).nan_to_num()
    of_weights = gradient @ values.transpose(-2, -1)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    made = [
        (of_scores @ keys * factor).sum_to_size(query.shape),
        _summed(of_scores.transpose(-2, -1) @ query * factor, heads).sum_to_size(key.shape),
        _summed(weights.transpose(-2, -1) @ gradient, heads).sum_to_size(value.shape),
    ]
    return [*made, of_scores.sum_to_size(mask.shape)] if mask is not None and of_mask else made


def _repeated(shared: Tensor, heads: int) -> Tensor:
    return shared if heads == 1 else shared.repeat_interleave(heads, -3)


def _summed(gradients: Tensor, heads: int) -> Tensor:
    return gradients if heads == 1 else gradients.unflatten(-3, (-1, heads)).sum(-3)


@attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    sums: Tensor,
    causal: bool,
    scale: float | None,
    shares_keys: bool,
    of_mask: bool,
) -> list[Tensor]:
    inputs = [query, key, value, *([mask] if mask is not None and of_mask else [])]
    return [torch.empty_like(each) for each in inputs]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, _, causal, scale, shares_keys = inputs
    ctx.options = causal, scale, shares_keys
    ctx.save_for_backward(query, key, value, mask, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, out, sums = ctx.saved_tensors
    of_mask = mask is not None and ctx.needs_input_grad[3]
    made = attention_backward(gradient, query, key, value, mask, out, sums, *ctx.options, of_mask)
    return (*made[:3], made[3] if of_mask else None, None, None, None, None)


attention.register_autograd(_backward, setup_context=_setup_context)


def attention_flops(
    query: Tensor, key: Tensor, value: Tensor, *_: Any, out_val: Any, **__: Any
) -> int:
    """Scores of every query and key, and sums of values by them."""
    out = out_val[0]
    return int(2 * out[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def attention_backward_flops(
    gradient: Tensor, query: Tensor, key: Tensor, *_: Any, **__: Any
) -> int:
    """Scores once more, and the gradients of scores, values, queries and keys."""
    width, of_value = query.shape[-1], gradient.shape[-1]
    return int(2 * gradient[..., 0].numel() * key.shape[-2] * (3 * width + 2 * of_value))


class FusedAttention(TorchFunctionMode):
    """Inside, attention is the operator above."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if func in SCALED_DOT_PRODUCT:
            return _fused(*args, **keywords)
        if func in CALLING_ATTENTION:
            setattr(functional, ATTENTION, _fused)
            try:
                return func(*args, **keywords)
            finally:
                setattr(functional, ATTENTION, torchs)
        return func(*args, **keywords)


torchs = functional.scaled_dot_product_attention
SCALED_DOT_PRODUCT = frozenset(
    {
        torchs,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)

CALLING_ATTENTION = frozenset(
    {
        functional.multi_head_attention_forward,
        Tensor.backward,  # of a checkpoint, which runs a part of the model again
        torch.autograd.backward,
        torch.autograd.grad,
    }
)
"""What these call passes by torch function modes."""


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if _is_causal_bias(attn_mask):
        attn_mask, is_causal = None, True
    if attn_mask is not None and is_causal:
        raise ValueError("attention takes a mask or is_causal, not both")
    given = (query, key, value)
    if any(each.layout != torch.strided or each.is_nested for each in given):
        return torchs(*given, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    out: Tensor = attention(*_autocast(*given, attn_mask), dropout_p, is_causal, scale, enable_gqa)[
        0
    ]
    return out


def _is_causal_bias(mask: Tensor | None) -> bool:
    """Importing its module would load torch._dynamo; a model that has one has done so."""
    bias = sys.modules.get("torch.nn.attention.bias")
    return bias is not None and isinstance(mask, bias.CausalBias)


def _autocast(*given: Tensor | None) -> list[Tensor | None]:
    """As autocast casts what it runs in the lower precision."""
    if not torch.is_autocast_enabled("cpu"):
        return list(given)
    lower = torch.get_autocast_dtype("cpu")
    castable = (torch.float32, torch.bfloat16, torch.float16)
    return [
        each.to(lower) if each is not None and each.dtype in castable else each for each in given
    ]
