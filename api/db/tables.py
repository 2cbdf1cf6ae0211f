"""All tables, so that whoever knows one knows the whole schema."""

from autosync.api.db.client_tables import (
    SCOPES,
    ApiKeyRow,
    BrowserSessionRow,
    ClientRow,
    WorkerRow,
)
from autosync.api.db.document_tables import ClusterRow, DomainRow, GraphRow, StrategyRow
from autosync.api.db.simulator_tables import (
    TRAINING_STATES,
    SimulatorPromotionRow,
    SimulatorRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
)
from autosync.api.db.table_base import Base, Hash, RowNumber
from autosync.api.db.trial_tables import ProposalRow, StrategySummaryRow, TrialRow
from autosync.api.db.tuning_tables import (
    ACTIVE,
    FINAL,
    STATES,
    WAITING,
    EventRow,
    OutcomeRow,
    TuningRow,
)

__all__ = [
    "ACTIVE",
    "FINAL",
    "SCOPES",
    "STATES",
    "TRAINING_STATES",
    "WAITING",
    "ApiKeyRow",
    "Base",
    "BrowserSessionRow",
    "ClientRow",
    "ClusterRow",
    "DomainRow",
    "EventRow",
    "GraphRow",
    "Hash",
    "OutcomeRow",
    "ProposalRow",
    "RowNumber",
    "SimulatorPromotionRow",
    "SimulatorRow",
    "SimulatorTrainingRow",
    "SimulatorVersionRow",
    "StrategyRow",
    "StrategySummaryRow",
    "TrialRow",
    "TuningRow",
    "WorkerRow",
]
