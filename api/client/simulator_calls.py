"""Trained simulators, and versions of the one that the service trains itself."""

from dataclasses import dataclass
from typing import Any

from autosync.api.client.service_connection import ServiceConnection
from autosync.api.views.document_schemas import Simulators, TrainedSimulator
from autosync.api.views.version_schemas import (
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersions,
)

LISTED = 100


@dataclass(frozen=True, slots=True)
class SimulatorCalls:
    connection: ServiceConnection

    def list(self, *, limit: int | None = LISTED, cursor: str | None = None) -> Simulators:
        """limit: None lists all."""
        return self.connection.listed("/v1/simulators", Simulators, limit, cursor)

    def put(self, name: str, card: bytes, weights: bytes) -> TrainedSimulator:
        """Store a checkpoint: the contents of its .json and .safetensors."""
        files = {"card": card, "weights": weights}
        answer = self.connection.send("PUT", f"/v1/simulators/{name}", files=files)
        return self.connection.parsed(answer, TrainedSimulator)

    def card(self, name: str) -> dict[str, Any]:
        card: dict[str, Any] = self.connection.send("GET", f"/v1/simulators/{name}").json()
        return card

    def weights(self, name: str) -> bytes:
        return self.connection.send("GET", f"/v1/simulators/{name}/weights").content

    def delete(self, name: str) -> None:
        self.connection.send("DELETE", f"/v1/simulators/{name}", repeatable=False)

    def versions(
        self, *, limit: int | None = LISTED, cursor: str | None = None
    ) -> SimulatorVersions:
        """Of the simulator that the service trains, the newest first, and which is in use."""
        path = "/v1/simulators/versions"
        return self.connection.listed(path, SimulatorVersions, limit, cursor)

    def promote(self, number: int) -> SimulatorVersions:
        """Use this version from now on; 0 is the bundled one."""
        path = f"/v1/simulators/versions/{number}/promote"
        return self.connection.post(path, SimulatorVersions)

    def train(self) -> SimulatorTraining:
        """Ask for the next version; one that waits already is answered."""
        return self.connection.post("/v1/simulators/trainings", SimulatorTraining)

    def trainings(
        self, *, limit: int | None = LISTED, cursor: str | None = None
    ) -> SimulatorTrainings:
        """The newest first."""
        path = "/v1/simulators/trainings"
        return self.connection.listed(path, SimulatorTrainings, limit, cursor)

    def training(self, training_id: str) -> SimulatorTraining:
        return self.connection.get(f"/v1/simulators/trainings/{training_id}", SimulatorTraining)
