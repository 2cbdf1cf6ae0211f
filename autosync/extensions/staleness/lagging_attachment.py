"""Puts a plan that lags on a model, in the form that it has."""

from autosync.extensions.staleness.clocked_attachment import ClockedAttachment
from autosync.extensions.staleness.clocked_setup import attach_clocked
from autosync.extensions.staleness.lagging_groups import LaggingJob
from autosync.extensions.staleness.lagging_plans import has_clocks
from autosync.extensions.staleness.pipelined_attachment import PipelinedAttachment, attach_pipelined

LaggingAttachment = PipelinedAttachment | ClockedAttachment


def attach_lagging(job: LaggingJob) -> LaggingAttachment:
    """As `attachment.attach`, for a plan of a staleness above 0. A collective over the process
    group. Raises as `attach_pipelined` and `attach_clocked`."""
    return attach_clocked(job) if has_clocks(job.plan) else attach_pipelined(job)
