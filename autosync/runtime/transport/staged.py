"""Messages of device tensors over a backend that moves host memory, through host buffers.

One mechanism for every operation: what the rank sends goes into a buffer of its own in host
memory, the operation runs there, and what the rank receives comes back. The thread that starts the
message waits until its copy is there (no stream does), the backend's threads move it, and the
copy back is asked for on the completion stream.
"""

from torch import Tensor

from autosync.codes import Op
from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.transport.base import Operation, Start, Then, Transport, Work


class StagedTransport:
    """host: moves host memory. streams: of the device."""

    def __init__(self, host: Transport, streams: Streams):
        self._host = host
        self._streams = streams

    def adds_up(self, kind: Op) -> bool:
        return self._host.adds_up(kind)

    def prepare(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        streams = self._streams
        host_wire = streams.host_buffer(wire)
        host_sums = host_wire if sums is wire else streams.host_buffer(sums)
        start_on_host = self._host.prepare(operation, host_wire, host_sums)
        summed = self.adds_up(operation.kind)
        result, host_result = (sums, host_sums) if summed else (wire, host_wire)
        sent = [(host_wire[span], wire[span]) for span in operation.sent()]
        received = [(result[span], host_result[span]) for span in operation.received()]
        copied_back: DeviceEvent = None

        def copy_back() -> None:
            nonlocal copied_back
            for place, values in received:
                place.copy_(values, non_blocking=True)
            copied_back = streams.record_event()

        def start() -> Work:
            streams.synchronize_event(copied_back)  # of the iteration before: the buffers are free
            for place, values in sent:
                place.copy_(values, non_blocking=True)
            streams.synchronize_event(streams.record_event())
            return Then(copy_back, start_on_host())

        return start
