"""HTTP/1.1 as uvicorn reads it, but a request that is none is refused like any other."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from autosync.api.http.problems import problem


class ProblemProtocol(H11Protocol):
    """Uvicorn answers in plain text what its parser cannot read."""

    def send_400_response(self, msg: str) -> None:
        answer = problem(
            400,
            "No HTTP",
            f"this is no HTTP/1.1 request: {msg.rstrip('.')}.",
            thing="request",
            remedy="Percent-encode what is no ASCII, and send headers as RFC 9112 has them.",
            headers={"Connection": "close"},
        )
        for event in (
            h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
