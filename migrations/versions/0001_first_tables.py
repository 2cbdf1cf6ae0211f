"""first tables"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_clusters"),
    )
    op.create_table(
        "graphs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.BigInteger(), nullable=False),
        sa.Column("variables", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_graphs"),
    )
    op.create_table(
        "strategies",
        sa.Column("hash", sa.String(length=32), nullable=False),
        sa.Column("strategy_id", sa.String(length=32), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_strategies"),
    )
    op.create_index("ix_strategies_strategy_id", "strategies", ["strategy_id"])

    op.create_table(
        "domains",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("graph_id", sa.String(length=32), nullable=False),
        sa.Column("cluster_id", sa.String(length=32), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("profile_source", sa.String(length=16), nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name="fk_domains_cluster_id_clusters"
        ),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name="fk_domains_graph_id_graphs"),
        sa.PrimaryKeyConstraint("id", name="pk_domains"),
    )
    op.create_index("ix_domains_cluster_id", "domains", ["cluster_id"])
    op.create_index("ix_domains_graph_id", "domains", ["graph_id"])

    op.create_table(
        "tunings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("domain_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("launcher", sa.String(length=32), nullable=False),
        sa.Column("byte_scale", sa.Double(), nullable=False),
        sa.Column("time_scale", sa.Double(), nullable=False),
        sa.Column("simulator", sa.String(length=32), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("ranked", sa.BigInteger(), nullable=False),
        sa.Column("best_seconds", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state in ('queued', 'running', 'cancelling', 'finished', 'failed', 'cancelled')",
            name="ck_tunings_state",
        ),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name="fk_tunings_domain_id_domains"),
        sa.PrimaryKeyConstraint("id", name="pk_tunings"),
    )
    op.create_index("ix_tunings_domain_id", "tunings", ["domain_id"])
    op.create_index("ix_tunings_state_created_at", "tunings", ["state", "created_at"])

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("best_seconds", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tuning_id"], ["tunings.id"], name="fk_events_tuning_id_tunings"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_tuning_id_id", "events", ["tuning_id", "id"])

    op.create_table(
        "outcomes",
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("strategy_hash", sa.String(length=32), nullable=False),
        sa.Column("best_seconds", sa.Double(), nullable=False),
        sa.Column("ddp_seconds", sa.Double(), nullable=False),
        sa.Column("speedup", sa.Double(), nullable=False),
        sa.Column("speedup_low", sa.Double(), nullable=False),
        sa.Column("speedup_high", sa.Double(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("keep_ddp", sa.Boolean(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["strategy_hash"], ["strategies.hash"], name="fk_outcomes_strategy_hash_strategies"
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name="fk_outcomes_tuning_id_tunings"
        ),
        sa.PrimaryKeyConstraint("tuning_id", name="pk_outcomes"),
    )
    op.create_table(
        "proposals",
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("strategy_hash", sa.String(length=32), nullable=False),
        sa.Column("strategy_id", sa.String(length=32), nullable=False),
        sa.Column("predicted_seconds", sa.Double(), nullable=False),
        sa.Column("simulator", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["strategy_hash"], ["strategies.hash"], name="fk_proposals_strategy_hash_strategies"
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name="fk_proposals_tuning_id_tunings"
        ),
        sa.PrimaryKeyConstraint("tuning_id", "key", name="pk_proposals"),
        sa.UniqueConstraint("tuning_id", "position", name="uq_proposals_tuning_id_position"),
    )
    op.create_index("ix_proposals_strategy_hash", "proposals", ["strategy_hash"])

    op.create_table(
        "trials",
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("domain_id", sa.String(length=32), nullable=False),
        sa.Column("strategy_id", sa.String(length=32), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=True),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("iteration_seconds", sa.JSON(), nullable=False),
        sa.Column("error_kind", sa.String(length=32), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_stderr", sa.Text(), nullable=True),
        sa.Column("launcher", sa.Text(), nullable=False),
        sa.Column("byte_scale", sa.Double(), nullable=False),
        sa.Column("time_scale", sa.Double(), nullable=False),
        sa.Column("load", sa.Double(), nullable=True),
        sa.Column("overhead_seconds", sa.Double(), nullable=False),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name="fk_trials_domain_id_domains"),
        sa.ForeignKeyConstraint(
            ["tuning_id", "key"],
            ["proposals.tuning_id", "proposals.key"],
            name="fk_trials_tuning_id_key_proposals",
        ),
        sa.PrimaryKeyConstraint("tuning_id", "key", name="pk_trials"),
        sa.UniqueConstraint("tuning_id", "position", name="uq_trials_tuning_id_position"),
    )
    op.create_index("ix_trials_domain_id", "trials", ["domain_id"])
    op.create_index("ix_trials_strategy_id", "trials", ["strategy_id"])


def downgrade() -> None:
    op.drop_index("ix_trials_strategy_id", "trials")
    op.drop_index("ix_trials_domain_id", "trials")

    op.drop_table("trials")
    op.drop_index("ix_proposals_strategy_hash", "proposals")

    op.drop_table("proposals")
    op.drop_table("outcomes")
    op.drop_index("ix_events_tuning_id_id", "events")

    op.drop_table("events")
    op.drop_index("ix_tunings_state_created_at", "tunings")
    op.drop_index("ix_tunings_domain_id", "tunings")

    op.drop_table("tunings")
    op.drop_index("ix_domains_graph_id", "domains")
    op.drop_index("ix_domains_cluster_id", "domains")

    op.drop_table("domains")
    op.drop_index("ix_strategies_strategy_id", "strategies")

    op.drop_table("strategies")
    op.drop_table("graphs")
    op.drop_table("clusters")
