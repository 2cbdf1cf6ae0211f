"""What every refusal of the REST API says, and a cluster to send it."""

import json
from typing import Any

YAML = """
name: two
nodes:
  - {address: 10.0.0.1, devices: [{type: v100}], bandwidth_gbps: 9.5}
  - {address: 10.0.0.2, devices: [{type: v100}], bandwidth_gbps: 9.5}
"""


def refused(answer: Any, status: int, *parts: str) -> dict[str, Any]:
    """A problem that names the thing, the value and the way out."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    for part in parts:
        assert part in json.dumps(problem, ensure_ascii=False), problem
    assert problem["thing"], problem
    assert problem["remedy"], problem
    return problem
