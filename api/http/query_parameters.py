"""A query parameter that a path does not have is refused: a filter with a typing error would
otherwise filter nothing, without a word."""

from collections import Counter

from fastapi import Request

from autosync.errors import InvalidInput


async def refuse_unknown_parameters(request: Request) -> None:
    """Of paths in the OpenAPI document, which says what each takes.

    Raises:
        InvalidInput: names the parameter.
    """
    if not request.query_params:
        return
    known = _known(request)
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            taken = f"It takes {', '.join(known)}." if known else "It takes none."
            raise InvalidInput(
                f"there is no query parameter {name[:80]!r} here.",
                thing=name[:80],
                value=request.query_params[name],
                remedy=taken,
            )
        if times > 1:
            raise InvalidInput(
                f"the query parameter {name!r} is given {times} times.",
                thing=name,
                value=request.query_params.getlist(name),
                remedy="Give it once.",
            )


def _known(request: Request) -> list[str]:
    paths = request.app.openapi()["paths"]
    operation = paths[request.scope["route"].path][request.method.lower()]
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
