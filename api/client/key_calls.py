"""Keys, for who has one of scope admin."""

from dataclasses import dataclass
from typing import Literal

from autosync.api.client.service_connection import ServiceConnection
from autosync.api.views.key_schemas import ApiKey, ApiKeys, MadeKey

LISTED = 100


@dataclass(frozen=True, slots=True)
class KeyCalls:
    connection: ServiceConnection

    def list(self, *, limit: int | None = LISTED, cursor: str | None = None) -> ApiKeys:
        """The newest first, with those that let nobody in any more. limit: None lists all."""
        return self.connection.listed("/v1/keys", ApiKeys, limit, cursor)

    def add(
        self, name: str, scope: Literal["read", "tune", "admin"], days: int | None = None
    ) -> MadeKey:
        """days: after which it ends; None: never. The answer's `key` is shown once."""
        body = {"name": name, "scope": scope, "days": days}
        return self.connection.post("/v1/keys", MadeKey, json=body)

    def revoke(self, key_id: str) -> ApiKey:
        """From now on it lets nobody in, nor do the browsers that logged in with it."""
        return self.connection.post(f"/v1/keys/{key_id}/revoke", ApiKey, repeatable=True)
