"""Messages of device tensors over a backend that moves host memory, through host buffers.

One mechanism for every operation: what the rank sends goes into a buffer of its own in host
memory, the operation runs there, and what the rank receives comes back. The thread that issues the
message waits until its copy is there (no stream does), the backend's threads move it, and the
copy back is asked for on the landing stream.
"""

from collections.abc import Callable

from torch import Tensor

from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.transport.start_finish import Finish, Start
from autosync.runtime.transport.team_role import TeamRole

OnHost = Callable[[Tensor, Tensor], Start]
"""From host memory's (wire, sums), in which the operation leaves its result as on the device, to
what issues it there."""


def staged(
    streams: Streams, role: TeamRole, wire: Tensor, sums: Tensor, on_host: OnHost, summed: bool
) -> Start:
    """What issues a message on the current stream.

    wire, sums: on the device; see `gloo_start`. summed: the result is in `sums`.
    """
    host_wire = streams.host_buffer(wire)
    host_sums = host_wire if sums is wire else streams.host_buffer(sums)
    issue = on_host(host_wire, host_sums)
    result, host_result = (sums, host_sums) if summed else (wire, host_wire)
    sent, received = role.sent(), role.received()
    copied_back: DeviceEvent = None

    def start() -> Finish:
        streams.synchronize_event(copied_back)  # of the iteration before: the buffers are free
        for span in sent:
            host_wire[span].copy_(wire[span], non_blocking=True)
        streams.synchronize_event(streams.record_event())
        finish_on_host = issue()

        def finish() -> None:
            nonlocal copied_back
            finish_on_host()
            for span in received:
                result[span].copy_(host_result[span], non_blocking=True)
            copied_back = streams.record_event()

        return finish

    return start


def staged_in_place(tensor: Tensor, on_host: Callable[[Tensor], Finish]) -> Finish:
    """Issue an operation that leaves its result where it was given, on a tensor that lives for
    one message; both copies are waited for by the thread that asks."""
    copy = tensor.cpu()
    finish_on_host = on_host(copy)

    def finish() -> None:
        finish_on_host()
        tensor.copy_(copy)

    return finish
