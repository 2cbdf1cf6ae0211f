import threading
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import NotTraceable
from autosync.importing import import_module
from tests.autosync.importing import modules
from tests.autosync.importing.modules import BATCH, Layer, cross_entropy, features, labels


def refusal(
    module: Any, inputs: Any = None, loss: Any = cross_entropy, batch_size: int = BATCH
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


READS, DEPENDS = "reads a tensor's value", "shape depends on data"


def total(outputs: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    return outputs.sum()


def failing() -> nn.Module:
    raise ValueError("first line\nsecond line")


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).abs()


@pytest.mark.parametrize(
    ("module", "given", "words"),
    [
        (Layer(lambda x: x * x.max().item()), {}, [READS]),
        (Layer(lambda x: x * float(x.sum())), {}, [READS]),
        (Layer(lambda x: x + x.tolist()[0][0]), {}, [READS]),
        (Layer(lambda x: x + torch.from_numpy(x.detach().numpy())), {}, [READS]),
        (Layer(lambda x: x[x > 0]), {"loss": total}, [DEPENDS, "'index'"]),
        (Layer(torch.unique), {"loss": total}, [DEPENDS]),
        (nn.ReLU(), {}, ["no trainable parameter"]),
        (nn.LazyLinear(3), {}, ["lazy"]),
        (Complex(), {"loss": total}, ["complex64"]),
        (failing, {}, ["first line"]),
        (lambda: 3, {}, ["not an nn.Module"]),
        (modules.perceptron(), {"batch_size": 5}, ["batch size 5", "(4, 8)"]),
        (modules.perceptron(), {"batch_size": 0}, ["batch size 0"]),
        (modules.perceptron(), {"inputs": (features(),), "loss": None}, ["of shape (4, 3)"]),
        (Layer(lambda x: x), {"loss": lambda *_: "loss"}, ["a str"]),
        (
            modules.perceptron(),
            {"loss": lambda out, *_: out.detach().sum()},
            ["does not depend on the parameters"],
        ),
        (modules.perceptron(), {"loss": lambda outputs: outputs.sum()}, ["the loss function"]),
        (nn.Bilinear(8, 8, 3), {"inputs": (features(),)}, ["input2"]),
        (modules.perceptron(), {"loss": None}, ["too many"]),
    ],
)
def test_what_is_wrong_is_named(module: Any, given: dict[str, Any], words: list[str]) -> None:
    message = refusal(module, **given).message
    assert all(each in message for each in words)
    assert "second line" not in message


def test_inputs_that_do_not_fit_name_module_and_operation_and_no_line_of_torch() -> None:
    error = refusal(modules.perceptron(), inputs=(torch.randn(BATCH, 7), labels()))
    assert "module '0'" in error.message
    assert "'addmm'" in error.message
    assert "example inputs" in error.remedy
    assert "linear.py" not in error.message


def test_an_operation_without_meta_kernel_is_named() -> None:
    torch.library.define("tried::without_shapes", "(Tensor x) -> Tensor")
    operation = torch.ops.tried.without_shapes
    torch.library.impl("tried::without_shapes", "cpu", lambda x: x * 2)
    error = refusal(Layer(operation), loss=total)
    assert "without_shapes" in error.message
    assert "register_fake" in error.remedy


def reads(x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def test_a_refusal_names_the_users_line() -> None:
    line = reads.__code__.co_firstlineno + 1
    message = refusal(Layer(reads)).message
    assert f"{__name__.replace('.', '/')}.py:{line} in reads" in message
    code = reads.__code__.replace(co_filename="/tmp/ipykernel_1/22.py")  # a notebook's cell
    message = refusal(Layer(FunctionType(code, globals()))).message
    assert f"ipykernel_1/22.py:{line} in reads)" in message


def test_a_backward_that_fails_is_refused() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("no backward today")

    error = refusal(nn.Sequential(nn.Linear(8, 8), Layer(Broken.apply)))
    assert "backward pass, module '1'" in error.message, "not the loss function"
    assert "no backward today" in error.message


def test_a_module_that_cannot_be_copied() -> None:
    module = modules.perceptron()
    module.lock = threading.Lock()  # type: ignore[assignment]
    assert "function that builds" in refusal(module).remedy
