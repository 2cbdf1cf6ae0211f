"""Lists of what is stored: graphs, clusters, trained simulators."""

from autosync.api.views.response_model import Moment, Page, ResponseModel


class GraphSummary(ResponseModel):
    id: str
    name: str
    batch_size: int
    variables: int
    parameters: int
    size_bytes: int
    created_at: Moment


class BundledModel(ResponseModel):
    name: str
    title: str
    batch_size: int
    parameters: int


class Graphs(Page):
    items: list[GraphSummary]
    bundled: list[BundledModel]


class ClusterSummary(ResponseModel):
    id: str
    name: str
    nodes: int
    world_size: int
    created_at: Moment


class Clusters(Page):
    items: list[ClusterSummary]
    bundled: list[str]


class TrainedSimulator(ResponseModel):
    """domains, trials: what it learned from. accuracy: pairs of strategies it had not seen that it
    ranked rightly; `unseen` says which. feature_version: of what it reads; a service uses only
    those of its own version."""

    name: str
    kind: str
    feature_version: int
    domains: int
    trials: int
    accuracy: float | None
    unseen: str
    size_bytes: int
    created_at: Moment


class Simulators(Page):
    items: list[TrainedSimulator]
    bundled: list[str]
