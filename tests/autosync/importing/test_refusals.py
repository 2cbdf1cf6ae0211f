import threading
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import NotTraceable
from autosync.importing import import_module
from tests.autosync.importing import modules
from tests.autosync.importing.modules import BATCH, Layer, cross_entropy, features, labels


def refusal(
    module: Any,
    inputs: Any = None,
    loss: Any = cross_entropy,
    batch_size: int = BATCH,
) -> NotTraceable:
    given = (features(), labels()) if inputs is None else inputs
    with pytest.raises(NotTraceable) as caught:
        import_module(module, given, loss, name="mine", batch_size=batch_size)
    error = caught.value
    assert "'mine'" in error.message
    assert error.remedy
    assert "Traceback" not in str(error)
    hidden = error.__context__ is None or error.__suppress_context__
    assert hidden, "torch's own traceback would be shown"
    assert len(str(error)) < 800
    return error


def test_control_flow_on_data_names_module_and_way_out() -> None:
    branching = nn.Sequential(nn.Linear(8, 8), Layer(lambda x: x * 2 if x.sum() > 0 else x))
    error = refusal(branching)
    assert "module '1'" in error.message
    assert "reads a tensor's value" in error.message
    assert "torch.where" in error.remedy


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * x.max().item(),
        lambda x: x * float(x.sum()),
        lambda x: x + x.tolist()[0][0],
        lambda x: x + torch.from_numpy(x.detach().numpy()),
    ],
)
def test_reading_values_is_refused(read: Any) -> None:
    assert "reads a tensor's value" in refusal(Layer(read)).message


def test_shapes_that_depend_on_data_are_refused() -> None:
    error = refusal(Layer(lambda x: x[x > 0]), loss=lambda out, *_: out.sum())
    assert "shape depends on data" in error.message
    assert "'index'" in error.message


def test_an_operation_without_meta_kernel_is_named() -> None:
    torch.library.define("tried::without_shapes", "(Tensor x) -> Tensor")
    operation = torch.ops.tried.without_shapes
    torch.library.impl("tried::without_shapes", "cpu", lambda x: x * 2)
    error = refusal(Layer(operation), loss=lambda out, *_: out.sum())
    assert "without_shapes" in error.message
    assert "register_fake" in error.remedy


def test_unique_is_a_shape_that_depends_on_data() -> None:
    error = refusal(Layer(torch.unique), loss=lambda out, *_: out.sum())
    assert "shape depends on data" in error.message


def test_no_parameters() -> None:
    assert "no trainable parameter" in refusal(nn.ReLU()).message


def test_no_scalar_loss() -> None:
    message = refusal(modules.perceptron(), inputs=(features(),), loss=None).message
    assert "tensor of shape (4, 3)" in message
    assert "a str" in refusal(Layer(lambda x: x), loss=lambda *_: "loss").message
    detached = refusal(modules.perceptron(), loss=lambda out, *_: out.detach().sum())
    assert "does not depend on the parameters" in detached.message


def test_the_loss_function_at_fault_is_named() -> None:
    error = refusal(modules.perceptron(), loss=lambda outputs: outputs.sum())
    assert "the loss function" in error.message


def test_mismatching_inputs() -> None:
    wrong_shape = refusal(modules.perceptron(), inputs=(torch.randn(BATCH, 7), labels()))
    assert "module '0'" in wrong_shape.message
    assert "'addmm'" in wrong_shape.message
    assert "example inputs" in wrong_shape.remedy
    too_few = refusal(nn.Bilinear(8, 8, 3), inputs=(features(),))
    assert "input2" in too_few.message
    too_many = refusal(modules.perceptron(), loss=None)
    assert "too many" in too_many.message


def test_no_input_has_the_batch_size() -> None:
    error = refusal(modules.perceptron(), batch_size=5)
    assert "batch size 5" in error.message
    assert "(4, 8)" in error.message
    assert "batch size 0" in refusal(modules.perceptron(), batch_size=0).message


def reads(x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def test_a_refusal_names_the_users_line() -> None:
    line = reads.__code__.co_firstlineno + 1
    message = refusal(Layer(reads)).message
    assert f"{__name__.replace('.', '/')}.py:{line} in reads" in message


def test_a_line_of_a_package_is_named_where_there_is_no_other() -> None:
    message = refusal(nn.Linear(8, 3), inputs=(torch.randn(BATCH, 7), labels())).message
    assert "linear.py" not in message, "torch's own lines say nothing"


def test_a_backward_that_fails_is_refused() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("no backward today")

    error = refusal(Layer(Broken.apply))
    assert "backward pass" in error.message
    assert "no backward today" in error.message


def test_a_factory_that_fails_or_makes_no_module() -> None:
    def fails() -> nn.Module:
        raise ValueError("first line\nsecond line")

    message = refusal(fails).message
    assert "first line" in message
    assert "second line" not in message
    assert "not an nn.Module" in refusal(lambda: 3).message


def test_a_module_that_cannot_be_copied() -> None:
    module = modules.perceptron()
    module.lock = threading.Lock()  # type: ignore[assignment]
    assert "function that builds" in refusal(module).remedy


def test_a_lazy_parameter() -> None:
    assert "lazy" in refusal(nn.LazyLinear(3)).message


def test_an_unknown_dtype() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).abs()

    assert "complex64" in refusal(Complex(), loss=lambda out, *_: out.sum()).message
