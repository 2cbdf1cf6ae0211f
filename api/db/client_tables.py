"""Tables of who takes part: clients, their keys and browsers, and workers."""

from sqlalchemy import CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.clock import now_seconds
from autosync.api.db.table_base import Base

SCOPES = ("read", "tune", "admin")
"""What a key may do; each also what those before it may."""
DIGEST = String(64)
"""Of SHA-256, in hex."""


class ClientRow(Base):
    """Who asks for tunings. served_at: when a worker last took one of theirs; 0: never."""

    __tablename__ = "clients"

    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    served_at: Mapped[float] = mapped_column(default=0.0)


class ApiKeyRow(Base):
    """A key: `id.secret` (`autosync.api.engine.api_keys`). Keys of one name are of one client.

    digest: of the secret, which is kept nowhere. last_used_at: to some minutes; NULL: never.
    expires_at: NULL where it does not. A revoked key stays in the list.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(f"scope in {SCOPES}", name="scope"),
        Index(None, "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[str] = mapped_column(DIGEST)
    name: Mapped[str] = mapped_column(String(40))
    scope: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    last_used_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class BrowserSessionRow(Base):
    """A browser that logged in, with a key or with a token of the service's operator.

    digest: of the browser's cookie. token_proof: see `browser_sessions.proof_of`.
    """

    __tablename__ = "browser_sessions"
    __table_args__ = (
        CheckConstraint("(key_id is null) <> (token_proof is null)", name="shown"),
        Index(None, "expires_at"),
    )

    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    token_proof: Mapped[str | None] = mapped_column(DIGEST)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    expires_at: Mapped[float]


class WorkerRow(Base):
    """A worker of the queue. lives_until: by the database's clock; it renews it while it lives.

    gpus: of its machine.
    """

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    gpus: Mapped[int]
    started_at: Mapped[float] = mapped_column(default=now_seconds())
    lives_until: Mapped[float]
