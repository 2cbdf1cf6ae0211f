"""What a model has learned, as arrays by name: how they are described, nested and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from autosync.errors import InvalidInput

Arrays = Mapping[str, NDArray[Any]]
Rule = Callable[[NDArray[Any]], str]
"""What is wrong with the values of an array; empty if nothing is."""
T = TypeVar("T")


def finite(array: NDArray[Any]) -> str:
    return "" if np.isfinite(array).all() else "holds values that are not finite"


def positive(array: NDArray[Any]) -> str:
    """Infinity is allowed: the scale of a column that never varied."""
    return "" if (array > 0).all() else "holds values that are not positive"


def not_negative(array: NDArray[Any]) -> str:
    return finite(array) or ("" if (array >= 0).all() else "is negative")


def a_share(array: NDArray[Any]) -> str:
    return finite(array) or ("" if ((array >= 0) & (array <= 1)).all() else "is no share")


def shares_of_one(array: NDArray[Any]) -> str:
    """Their sum may be less than 1."""
    sound = (array >= 0).all() and array.sum() <= 1 + 1e-9
    return finite(array) or ("" if sound else "holds no shares of 1")


def rising(array: NDArray[Any]) -> str:
    return finite(array) or ("" if (np.diff(array) > 0).all() else "does not rise")


def not_falling(array: NDArray[Any]) -> str:
    return finite(array) or ("" if (np.diff(array) >= 0).all() else "falls")


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """What an array must be like to be loaded."""

    shape: tuple[int, ...]
    dtype: type[np.generic] = np.float64
    rule: Rule = finite


class ArrayFields:
    """Base of dataclasses whose fields are arrays or numbers, as checkpoints hold them by name."""

    __slots__ = ()

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            field.name: np.atleast_1d(getattr(self, field.name))
            for field in fields(cast(Any, self))
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Of what `arrays` returned."""
        return cls(
            **{
                field.name: float(arrays[field.name][0])
                if field.type is float
                else arrays[field.name]
                for field in fields(cast(Any, cls))
            }
        )


def nested(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """The same under longer names."""
    return {f"{prefix}{name}": value for name, value in named.items()}


def below(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """The inverse of `nested`: what has the prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def forms_if_given(
    prefix: str, forms: Mapping[str, ArrayForm], given: Arrays
) -> dict[str, ArrayForm]:
    """The forms of a component below `prefix`; none where nothing of it is given, for then it was
    never trained. Half a component is refused by `check_arrays`."""
    wanted = nested(prefix, forms)
    return wanted if wanted.keys() & given.keys() else {}


def check_arrays(given: Arrays, forms: Mapping[str, ArrayForm]) -> None:
    """Raises InvalidInput where `given` are not exactly the arrays that `forms` describe."""
    if missing := forms.keys() - given.keys():
        raise unfit(f"tensor {min(missing)!r} is missing")
    if odd := given.keys() - forms.keys():
        raise unfit(f"tensor {min(odd)!r} belongs to no model of this kind")
    for name, form in forms.items():
        array = given[name]
        if (array.shape, array.dtype) != (form.shape, np.dtype(form.dtype)):
            found = f"{array.dtype} of shape {array.shape}"
            raise unfit(
                f"tensor {name!r} is {found}, not {np.dtype(form.dtype)} of shape {form.shape}"
            )
        if wrong := form.rule(array):
            raise unfit(f"tensor {name!r} {wrong}")


def unfit(why: str) -> InvalidInput:
    """The refusal of arrays that a model cannot have written."""
    return InvalidInput(why, thing="tensors")
