"""Attention is one operation with memory linear in tokens, whatever it is recorded on."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.graph import ModelGraph, Operation
from autosync.importing import import_module
from autosync.importing.attention import FusedAttention

BATCH, HEADS, TOKENS, WIDTH = 2, 4, 96, 16
HIDDEN = HEADS * WIDTH
FORWARD_FLOPS = 2 * 2 * BATCH * HEADS * TOKENS * TOKENS * WIDTH
"""torch.utils.flop_counter.sdpa_flop_count: scores, and sums of values."""
SAVED_BYTES = 4 * BATCH * HEADS * TOKENS * (WIDTH + 1)


class Attending(nn.Module):
    """options: of the attention. key_heads: heads of key and value."""

    def __init__(self, key_heads: int = HEADS, bias: bool = False, **options: Any) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, key_heads * WIDTH)
        self.value = nn.Linear(HIDDEN, key_heads * WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, TOKENS, TOKENS)) if bias else None
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        options = self.options if self.bias is None else {**self.options, "attn_mask": self.bias}
        seen = self.attend(query, key, value, **options)
        return seen.transpose(1, 2).flatten(2).mean()

    attend: Callable[..., Tensor] = staticmethod(
        lambda *given, **options: functional.scaled_dot_product_attention(*given, **options)
    )


def window() -> Tensor:
    places = torch.arange(TOKENS)
    return (places[:, None] - places[None, :]).abs() < 8


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "sliding window": {"attn_mask": window()},
    "added mask": {"attn_mask": torch.zeros(TOKENS, TOKENS)},
    "trained bias": {"bias": True},
    "scale": {"scale": 0.5},
    "shared keys": {"key_heads": 2, "enable_gqa": True},
    "one key": {"key_heads": 1, "enable_gqa": True, "is_causal": True},
}


def recorded(module: nn.Module, **how: Any) -> ModelGraph:
    inputs = (torch.randn(BATCH, TOKENS, HIDDEN, dtype=next(module.parameters()).dtype),)
    return import_module(module, inputs, None, name="attending", batch_size=BATCH, **how)


def the_attention(graph: ModelGraph) -> Operation:
    (found,) = (o for o in graph.operations if o.forward_flops and not o.type.endswith("mm"))
    assert found.type == "scaled_dot_product_attention"
    return found


def assert_fused(graph: ModelGraph) -> None:
    operation = the_attention(graph)
    assert operation.forward_flops == FORWARD_FLOPS
    assert operation.backward_flops == 2.5 * FORWARD_FLOPS
    quadratic = 4 * BATCH * HEADS * TOKENS * TOKENS
    assert all(o.output_bytes < quadratic / 2 for o in graph.operations)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_one_operation_on_the_meta_device(kind: str) -> None:
    graph = recorded(Attending(**KINDS[kind]))
    assert_fused(graph)
    assert the_attention(graph).output_bytes == SAVED_BYTES
    assert len(the_attention(graph).inputs) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_the_same_operation_with_values(kind: str) -> None:
    module = Attending(**KINDS[kind])
    on_meta, with_values = recorded(module), recorded(module, values=True, autocast=None)
    names = [(o.name, o.forward_flops, o.backward_flops) for o in with_values.operations]
    assert names == [(o.name, o.forward_flops, o.backward_flops) for o in on_meta.operations]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_is_one_operation_on_fake_tensors(kind: str, dtype: torch.dtype) -> None:
    operation = the_attention(recorded(Attending(**KINDS[kind]), autocast=dtype))
    assert operation.forward_flops == FORWARD_FLOPS
    assert operation.backward_flops == 2.5 * FORWARD_FLOPS
    assert operation.output_bytes == BATCH * HEADS * TOKENS * (2 * WIDTH + 4)
    assert operation.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_of_the_model_does_not_matter(dtype: torch.dtype) -> None:
    assert_fused(recorded(Attending(is_causal=True).to(dtype)))


def test_a_trained_bias_gets_its_gradient() -> None:
    graph = recorded(Attending(bias=True))
    bias = next(i for i, v in enumerate(graph.variables) if v.name == "bias")
    assert graph.operations[graph.gradient_after[bias]].type == "scaled_dot_product_attention"


def test_torchs_own_attention_layers_are_fused() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
            self.layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 32, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return torch.mean(self.layer(attended))

    graph = recorded(Layers())
    fused = [o for o in graph.operations if o.type == "scaled_dot_product_attention"]
    assert [o.forward_flops for o in fused] == [FORWARD_FLOPS] * 2
    before = functional.scaled_dot_product_attention
    assert before.__module__ != "autosync.importing.attention"


def test_a_name_that_was_bound_before_is_fused() -> None:
    class Bound(Attending):
        attend = staticmethod(torch._C._nn.scaled_dot_product_attention)

    class Dispatched(Attending):
        attend = staticmethod(torch.ops.aten.scaled_dot_product_attention)

    assert_fused(recorded(Bound()))
    assert_fused(recorded(Dispatched()))


def test_a_checkpointed_part_has_its_attention_once() -> None:
    class Checkpointed(Attending):
        def forward(self, x: Tensor) -> Tensor:
            found = torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)
            assert isinstance(found, Tensor)
            return found

    assert the_attention(recorded(Checkpointed())).forward_flops == FORWARD_FLOPS


def test_attention_written_by_hand_stays_what_it_is() -> None:
    class ByHand(Attending):
        @staticmethod
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scores = query @ key.transpose(-2, -1) / math.sqrt(WIDTH)
            return torch.softmax(scores, -1) @ value

    graph = recorded(ByHand())
    assert max(o.output_bytes for o in graph.operations) == 4 * BATCH * HEADS * TOKENS * TOKENS


def test_shapes_that_do_not_fit_are_refused_as_torch_does() -> None:
    from autosync.errors import NotTraceable

    for wrong in (Attending(key_heads=3, enable_gqa=True), Attending(attn_mask=torch.zeros(5, 7))):
        with pytest.raises(NotTraceable, match="attention"):
            recorded(wrong)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dropout"])
def test_values_and_gradients_are_torchs(kind: str) -> None:
    torch.manual_seed(0)
    module = Attending(**KINDS[kind])
    if module.bias is not None:
        nn.init.normal_(module.bias)
    inputs = torch.randn(BATCH, TOKENS, HIDDEN)
    expected = module(inputs)
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    with FusedAttention():
        found = module(inputs)
    assert torch.allclose(found, expected, atol=1e-6)
    found_gradients = torch.autograd.grad(found, list(module.parameters()))
    for ours, torchs in zip(found_gradients, gradients, strict=True):
        assert torch.allclose(ours, torchs, atol=1e-6)
