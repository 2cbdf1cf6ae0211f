"""ETags: an answer that a client has already is not sent again (RFC 9110, 13.1.2)."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import Header, Request, Response
from sqlalchemy.orm import Session

from autosync.api.db.lookup import stored
from autosync.api.db.tables import FINAL, TuningRow
from autosync.environment import own_version

SeenTags = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        max_length=1000,
        description="The `ETag` of an answer that is known: 304 where it is still the same.",
    ),
]
FOREVER = "private, max-age=31536000, immutable"
"""For documents whose address is the hash of their content."""
ASK_AGAIN = "private, no-cache"
"""The client may keep the answer, and asks again with its tag."""
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "As `If-None-Match` has it."}}


def tagged(
    body: Callable[[], str | bytes],
    seen: str | None,
    tag: str | None = None,
    *,
    media_type: str = "application/json",
    cache: str = ASK_AGAIN,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer with its tag; 304 where the client has it.

    seen: the request's If-None-Match. tag: where it is known before the answer is made; by default
    the hash of its content.
    """
    if tag is not None and _is_seen(tag, seen):
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": cache})
    made = body()
    content = made.encode() if isinstance(made, str) else made
    tag = tag or tag_of(content)
    sent = {"ETag": tag, "Cache-Control": cache}
    if _is_seen(tag, seen):
        return Response(status_code=304, headers=sent)
    return Response(content, headers={**sent, **(headers or {})}, media_type=media_type)


def tagged_once_ended(
    session: Session,
    tuning_id: str,
    request: Request,
    body: Callable[[], str],
    seen: str | None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """As `tagged`, of what a request asks about a tuning. Once that has ended the tag is known
    before the answer is made.

    Raises:
        NotFound: no such tuning.
    """
    return tagged(body, seen, tag_of_ended(session, tuning_id, request), headers=headers)


def tag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def tag_of_ended(session: Session, tuning_id: str, request: Request) -> str | None:
    """The tag of the answer to this request about a tuning; None while the tuning goes on, since
    then the answer changes. It holds the version, which may word the answer otherwise.

    Raises:
        NotFound: no such tuning.
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    if tuning.state not in FINAL:
        return None
    what = (own_version(), str(request.url), tuning.state, tuning.fence, tuning.finished_at)
    return tag_of(repr(what).encode())


def _is_seen(tag: str, seen: str | None) -> bool:
    """Whether If-None-Match names the tag; weak ones count as strong ones do."""
    given = [each.strip().removeprefix("W/") for each in (seen or "").split(",")]
    return tag in given or given == ["*"]
