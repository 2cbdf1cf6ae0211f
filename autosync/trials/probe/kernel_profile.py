"""How long a replay's kernels really take where they run: a profile that is measured.

Kernels take what they take, whatever the domain's profile says, so a tuning whose compute is
kernels first measures this and predicts from it. All ranks compute at once meanwhile: where several
share a GPU (or a machine's cores), each is as slow as it will be in trials.
"""

from collections.abc import Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain, Profile
from autosync.errors import NotSupported
from autosync.trials.commands import StretchesTimed
from autosync.trials.contract import TrialFailed
from autosync.trials.pool.process_pool import ProcessPool

REPEATS = 10
TIMEOUT_SECONDS = 300.0


def profile_kernels(pool: ProcessPool, repeats: int = REPEATS) -> Profile:
    """The profile of the pool's domain with the seconds that its kernels take on its workers.

    It is stated for the cluster's fastest type of device, and measured on those: one profile for
    ranks that compute at once, so the mean over them.

    Raises:
        NotSupported: the workers could not run them; says why.
    """
    try:
        answers = pool.time_stretches(repeats, TIMEOUT_SECONDS)
    except TrialFailed as failure:
        raise NotSupported(
            f"the kernels could not be timed: {failure.error.message}",
            thing="compute",
            value="kernels",
            remedy="Choose compute waited, or a smaller batch.",
        ) from None
    domain = pool.workload.domain
    fastest = domain.cluster.fastest_device_type
    devices = domain.cluster.device_of_rank()
    of = [answer for answer, at in zip(answers, devices, strict=True) if at.type == fastest]
    return measured_profile(domain, of)


def measured_profile(domain: Domain, answers: Sequence[StretchesTimed]) -> Profile:
    """answers: of `stretch_times`, from ranks on equal devices."""
    names = sorted({answer.device for answer in answers})
    ranks = f"{len(answers)} ranks at once" if len(answers) > 1 else "one rank"
    return Profile(
        device=domain.cluster.fastest_device_type,
        batch_size=domain.batch_size,
        forward_seconds=tuple(_by_operation(domain, answers, backward=False).tolist()),
        backward_seconds=tuple(_by_operation(domain, answers, backward=True).tolist()),
        update_seconds=mean(answer.update_seconds for answer in answers),
        source="measured",
        note=f"kernels of the operations' shapes, {ranks} on {', '.join(names)}; each stretch "
        "counts for the operation that it gates or makes a gradient with",
    )


def _by_operation(
    domain: Domain, answers: Sequence[StretchesTimed], backward: bool
) -> NDArray[np.float64]:
    seconds = np.zeros(len(domain.graph.operations))
    for answer in answers:
        entries = zip(answer.operations, answer.backward, answer.seconds, strict=True)
        for operation, is_backward, each in entries:
            if is_backward == backward:
                seconds[operation] += each / len(answers)
    return seconds
