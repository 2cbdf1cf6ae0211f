"""all tables"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.CheckConstraint("scope in ('read', 'tune', 'admin')", name=op.f("ck_api_keys_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_created_at_id"), "api_keys", ["created_at", "id"])

    op.create_table(
        "clients",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("served_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_clients")),
    )
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
    )
    op.create_index(op.f("ix_clusters_created_at_id"), "clusters", ["created_at", "id"])

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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_graphs")),
    )
    op.create_index(op.f("ix_graphs_created_at_id"), "graphs", ["created_at", "id"])

    op.create_table(
        "simulator_promotions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_simulator_promotions")),
    )
    op.create_table(
        "simulators",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("feature_version", sa.Integer(), nullable=False),
        sa.Column("domains", sa.Integer(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("unseen", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("weights", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_simulators")),
    )
    op.create_table(
        "strategies",
        sa.Column("hash", sa.String(length=32), nullable=False),
        sa.Column("strategy_id", sa.String(length=32), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_strategies")),
    )
    op.create_index(op.f("ix_strategies_strategy_id"), "strategies", ["strategy_id"])

    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("lives_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "browser_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=True),
        sa.Column("token_proof", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "(key_id is null) <> (token_proof is null)", name=op.f("ck_browser_sessions_shown")
        ),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_browser_sessions_key_id_api_keys")
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_browser_sessions")),
    )
    op.create_index(op.f("ix_browser_sessions_expires_at"), "browser_sessions", ["expires_at"])

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
            ["cluster_id"], ["clusters.id"], name=op.f("fk_domains_cluster_id_clusters")
        ),
        sa.ForeignKeyConstraint(
            ["graph_id"], ["graphs.id"], name=op.f("fk_domains_graph_id_graphs")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_domains")),
    )
    op.create_index(op.f("ix_domains_cluster_id"), "domains", ["cluster_id"])
    op.create_index(op.f("ix_domains_graph_id"), "domains", ["graph_id"])

    op.create_table(
        "tunings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("domain_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("launcher", sa.String(length=32), nullable=False),
        sa.Column("byte_scale", sa.Double(), nullable=False),
        sa.Column("time_scale", sa.Double(), nullable=False),
        sa.Column("compute", sa.String(length=16), nullable=False),
        sa.Column("compute_device", sa.String(length=16), nullable=False),
        sa.Column("simulator", sa.String(length=32), nullable=False),
        sa.Column("simulator_version", sa.Integer(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("client", sa.String(length=80), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("request_digest", sa.String(length=32), nullable=True),
        sa.Column("limit_seconds", sa.Double(), nullable=True),
        sa.Column("held_seconds", sa.Double(), nullable=False),
        sa.Column("earlier", sa.Text(), nullable=True),
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
        sa.Column("ran_on", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("hosts", sa.String(length=32), nullable=False),
        sa.CheckConstraint(
            "state in ('queued', 'running', 'pausing', 'paused', 'cancelling', 'finished', "
            "'failed', 'cancelled')",
            name=op.f("ck_tunings_state"),
        ),
        sa.ForeignKeyConstraint(
            ["domain_id"], ["domains.id"], name=op.f("fk_tunings_domain_id_domains")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tunings")),
    )
    op.create_index(
        "ix_tunings_client_idempotency_key", "tunings", ["client", "idempotency_key"], unique=True
    )
    op.create_index(op.f("ix_tunings_created_at_id"), "tunings", ["created_at", "id"])
    op.create_index(op.f("ix_tunings_domain_id"), "tunings", ["domain_id"])
    op.create_index(op.f("ix_tunings_hosts_state"), "tunings", ["hosts", "state"])
    op.create_index(op.f("ix_tunings_state_created_at"), "tunings", ["state", "created_at"])

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
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name=op.f("fk_events_tuning_id_tunings")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_tuning_id_id"), "events", ["tuning_id", "id"])

    op.create_table(
        "outcomes",
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("strategy_hash", sa.String(length=32), nullable=False),
        sa.Column("best_seconds", sa.Double(), nullable=False),
        sa.Column("ddp_seconds", sa.Double(), nullable=True),
        sa.Column("baseline", sa.Text(), server_default="ddp", nullable=False),
        sa.Column("speedup", sa.Double(), nullable=False),
        sa.Column("speedup_low", sa.Double(), nullable=False),
        sa.Column("speedup_high", sa.Double(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("keep_ddp", sa.Boolean(), nullable=False),
        sa.Column("limit_seconds", sa.Double(), nullable=True),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["strategy_hash"],
            ["strategies.hash"],
            name=op.f("fk_outcomes_strategy_hash_strategies"),
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name=op.f("fk_outcomes_tuning_id_tunings")
        ),
        sa.PrimaryKeyConstraint("tuning_id", name=op.f("pk_outcomes")),
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
            ["strategy_hash"],
            ["strategies.hash"],
            name=op.f("fk_proposals_strategy_hash_strategies"),
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name=op.f("fk_proposals_tuning_id_tunings")
        ),
        sa.PrimaryKeyConstraint("tuning_id", "key", name=op.f("pk_proposals")),
        sa.UniqueConstraint("tuning_id", "position", name=op.f("uq_proposals_tuning_id_position")),
    )
    op.create_index(op.f("ix_proposals_strategy_hash"), "proposals", ["strategy_hash"])
    op.create_index(
        op.f("ix_proposals_tuning_id_strategy_id"), "proposals", ["tuning_id", "strategy_id"]
    )

    op.create_table(
        "simulator_trainings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tuning_id", sa.String(length=32), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state in ('queued', 'running', 'finished', 'failed')",
            name=op.f("ck_simulator_trainings_state"),
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name=op.f("fk_simulator_trainings_tuning_id_tunings")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_simulator_trainings")),
    )
    op.create_index(
        op.f("ix_simulator_trainings_created_at_id"), "simulator_trainings", ["created_at", "id"]
    )
    op.create_index(
        op.f("ix_simulator_trainings_state_created_at"),
        "simulator_trainings",
        ["state", "created_at"],
    )

    op.create_table(
        "strategy_summaries",
        sa.Column("tuning_id", sa.String(length=32), nullable=False),
        sa.Column("strategy_id", sa.String(length=32), nullable=False),
        sa.Column("strategy_hash", sa.String(length=32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("simulator", sa.Text(), nullable=False),
        sa.Column("predicted_seconds", sa.Double(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=True),
        sa.Column("sort_seconds", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("search_seconds", sa.Double(), nullable=True),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("recorded", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["strategy_hash"],
            ["strategies.hash"],
            name=op.f("fk_strategy_summaries_strategy_hash_strategies"),
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name=op.f("fk_strategy_summaries_tuning_id_tunings")
        ),
        sa.PrimaryKeyConstraint("tuning_id", "strategy_id", name=op.f("pk_strategy_summaries")),
    )
    op.create_index(
        op.f("ix_strategy_summaries_tuning_id_origin_position"),
        "strategy_summaries",
        ["tuning_id", "origin", "position"],
    )
    op.create_index(
        op.f("ix_strategy_summaries_tuning_id_sort_seconds_origin_position"),
        "strategy_summaries",
        ["tuning_id", "sort_seconds", "origin", "position"],
    )

    op.create_table(
        "simulator_versions",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("simulator", sa.String(length=32), nullable=False),
        sa.Column("training_id", sa.String(length=32), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("parent_accuracy", sa.Double(), nullable=True),
        sa.Column("pick_accuracy", sa.Double(), nullable=True),
        sa.Column("parent_pick_accuracy", sa.Double(), nullable=True),
        sa.Column("unseen_accuracy", sa.Double(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["simulator"],
            ["simulators.name"],
            name=op.f("fk_simulator_versions_simulator_simulators"),
        ),
        sa.ForeignKeyConstraint(
            ["training_id"],
            ["simulator_trainings.id"],
            name=op.f("fk_simulator_versions_training_id_simulator_trainings"),
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_simulator_versions")),
        sa.UniqueConstraint("training_id", name=op.f("uq_simulator_versions_training_id")),
    )
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
        sa.Column("sent_bytes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("timeline", sa.Text(), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["domain_id"], ["domains.id"], name=op.f("fk_trials_domain_id_domains")
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id", "key"],
            ["proposals.tuning_id", "proposals.key"],
            name=op.f("fk_trials_tuning_id_key_proposals"),
        ),
        sa.PrimaryKeyConstraint("tuning_id", "key", name=op.f("pk_trials")),
        sa.UniqueConstraint("tuning_id", "position", name=op.f("uq_trials_tuning_id_position")),
    )
    op.create_index(
        op.f("ix_trials_created_at_tuning_id_position"),
        "trials",
        ["created_at", "tuning_id", "position"],
    )
    op.create_index(
        op.f("ix_trials_domain_id_created_at_tuning_id_position"),
        "trials",
        ["domain_id", "created_at", "tuning_id", "position"],
    )
    op.create_index(op.f("ix_trials_strategy_id"), "trials", ["strategy_id"])


def downgrade() -> None:
    for table in (
        "trials",
        "simulator_versions",
        "strategy_summaries",
        "simulator_trainings",
        "proposals",
        "outcomes",
        "events",
        "tunings",
        "domains",
        "browser_sessions",
        "workers",
        "strategies",
        "simulators",
        "simulator_promotions",
        "graphs",
        "clusters",
        "clients",
        "api_keys",
    ):
        op.drop_table(table)
