"""The part of Chakra's messages that a profile needs; field numbers as MLCommons' et_def.proto
(Chakra 1.0) gives them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar


@dataclass(frozen=True, slots=True)
class ChakraAttribute:
    """Numbers are whole; which of its fields is set depends on the attribute."""

    name: Annotated[str, 1] = ""
    int32_val: Annotated[int, 7] = 0
    int64_val: Annotated[int, 9] = 0
    uint32_val: Annotated[int, 11] = 0
    uint64_val: Annotated[int, 13] = 0
    bool_val: Annotated[bool, 27] = False
    string_val: Annotated[str, 29] = ""
    OPEN: ClassVar[bool] = True

    @property
    def number(self) -> int:
        return self.int64_val or self.uint64_val or self.int32_val or self.uint32_val


@dataclass(frozen=True, slots=True)
class ChakraMetadata:
    """What a file begins with."""

    version: Annotated[str, 1] = ""
    attr: Annotated[tuple[ChakraAttribute, ...], 2] = ()
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ChakraMessage:
    """A node. ctrl_deps: the one that called it. data_deps: those that it waits for.
    duration_micros: without what it called."""

    id: Annotated[int, 1] = 0
    name: Annotated[str, 2] = ""
    type: Annotated[int, 3] = 0
    ctrl_deps: Annotated[tuple[int, ...], 4] = ()
    data_deps: Annotated[tuple[int, ...], 5] = ()
    duration_micros: Annotated[int, 7] = 0
    attr: Annotated[tuple[ChakraAttribute, ...], 10] = ()
    OPEN: ClassVar[bool] = True
