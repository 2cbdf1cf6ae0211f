"""The stages of `scripts/check_gpu`, most valuable first: what runs, how long, what it saves."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from autosync.trials.request_names import BackendName, ComputeDevice

CLI = (sys.executable, "-m", "autosync.api.cli.main")
DATABASE = "check-gpu.db"
"""Not the usual autosync.db, which may be of other tunings: it is removed before each tuning."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Setting:
    """folder: where results go. model: that is tuned. device_type: as cluster files say it. ranks:
    of the tuning, one a node."""

    folder: Path
    device: ComputeDevice
    backend: BackendName
    model: str
    device_type: str
    ranks: int
    launcher: str

    @property
    def dry(self) -> bool:
        """Without a GPU only the steps are shown, so models are small."""
        return self.device == "cpu"

    @property
    def where(self) -> tuple[str, ...]:
        return "--device", self.device, "--backend", self.backend


@dataclass(frozen=True, slots=True)
class Stage:
    """seconds: of the default minutes, for all commands. results: files in the folder that it
    must have left. environment: beside this process's."""

    name: str
    title: str
    seconds: float
    commands: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def stages_of(setting: Setting) -> tuple[Stage, ...]:
    return (
        nccl_tests(setting),
        beside_ddp(setting),
        diagnosis(setting),
        knobs(setting),
        tuning(setting),
        memory(setting),
        profiles(setting),
    )


def nccl_tests(setting: Setting) -> Stage:
    tests = [str(path) for path in (ROOT / "tests/autosync/runtime/device").glob("test_*.py")]
    if not setting.dry:
        tests += [
            "tests/autosync/trials/worker/test_kernel_trials.py",
            "tests/autosync/extensions/offload/test_swapping_cuda.py",
        ]
    tests.sort(key=lambda path: ("failures" in path, path))  # the longest last
    command = (
        *(sys.executable, "-m", "pytest", "-m", "cuda", "-v", "--durations=20"),
        # Another torch than the pinned one may warn of what is not ours.
        *("-W", "default", "-p", "no:cacheprovider"),
        *("--junitxml", str(setting.folder / "nccl-tests.xml"), *tests),
    )
    title = f"tests over {setting.backend.upper()} between ranks"
    environment: dict[str, str] = {"COMPUTE_DEVICE": setting.device}
    return Stage("nccl-tests", title, 290, (command,), ("nccl-tests.xml",), environment)


def beside_ddp(setting: Setting) -> Stage:
    models = ("mobilenet_v2:1",) if setting.dry else ("resnet50:32", "bert_3l:8")
    rounds = ("--rounds", "1", "--iterations", "2") if setting.dry else ()
    begin = (sys.executable, "-m", "benchmarks.gpu.beside_ddp", *setting.where, *rounds)
    command = (*begin, *models, "--json", str(setting.folder / "beside-ddp.json"))
    compiled = (
        *(*begin, models[-1], "--ranks", "2"),
        *("--compiled", "0" if setting.dry else "50"),  # minutes on a CPU
        *("--json", str(setting.folder / "beside-ddp-compiled.json")),
    )
    host = (
        *(sys.executable, "-m", "benchmarks.runtime.host_time", "--device", setting.device),
        *("--ranks", "2", "--repeats", "2" if setting.dry else "8"),
    )
    title = "the runtime beside torch's DDP"
    results = ("beside-ddp.json", "beside-ddp-compiled.json")
    return Stage("beside-ddp", title, 165, (command, host, compiled), results)


def diagnosis(setting: Setting) -> Stage:
    model = "mobilenet_v2:1" if setting.dry else "resnet50:32"
    command = (
        *(sys.executable, "-m", "benchmarks.gpu.diagnosed", model),
        *setting.where,
        *("--folder", str(setting.folder)),
    )
    pages = tuple(f"diagnosis-{wrap}.json" for wrap in ("ddp", "fsdp2"))
    traces = tuple(f"trace-{wrap}-0.json.gz" for wrap in ("ddp", "fsdp2"))
    return Stage("diagnosis", "autosync.diagnose on two ranks", 80, (command,), pages + traces)


def knobs(setting: Setting) -> Stage:
    command = (
        *(sys.executable, "-m", "benchmarks.gpu.knobs"),
        *("--seconds", "600" if setting.dry else "25"),
        *setting.where,
        *("--mib", *(("1",) if setting.dry else ("1", "25", "100"))),
        *("--rounds", "2" if setting.dry else "10"),
        *("--json", str(setting.folder / "knobs.json")),
    )
    return Stage("knobs", "messages with knobs of NCCL", 40, (command,), ("knobs.json",))


def tuning(setting: Setting) -> Stage:
    """Where the machine can shape links, they are those of the cluster file."""
    cluster = setting.folder / "cluster.yaml"
    few = ("--batch", "1", "--budget", "2", "--repeats", "1", "--proposals", "50")
    command = (
        *(*CLI, "tune", setting.model, str(cluster), "--launcher", setting.launcher),
        *("--compute", "kernels", "--compute-device", setting.device, "--share-gpus"),
        *("--db", f"sqlite:///{setting.folder / DATABASE}"),
        *("-o", str(setting.folder / "best.json")),
        *((*few, "--simulator", "timeline") if setting.dry else ("--budget", "12")),
        *(() if setting.dry else ("--repeats", "5")),
    )
    title = f"a tuning of {setting.model} over {setting.backend} at 10 Gbit/s"
    return Stage("tuning", title, 120, (command,), ("runtimes.parquet", "best.json"))


def write_cluster(setting: Setting) -> None:
    """Nodes of one device each on 10 Gbit Ethernet."""
    nodes = "".join(
        f"  - {{address: 10.0.0.{rank + 1}, devices: [{{type: {setting.device_type}, count: 1}}], "
        "bandwidth_gbps: 9.56, latency_us: 50}\n"
        for rank in range(setting.ranks)
    )
    text = f"name: one-gpu-shared\nbackend: {setting.backend}\nnodes:\n{nodes}"
    (setting.folder / "cluster.yaml").write_text(text)


def memory(setting: Setting) -> Stage:
    alone = ("mobilenet_v2:1",) if setting.dry else ("resnet50:32", "bert_base:8", "gpt2:4")
    under = alone[0] if setting.dry else "bert_3l:8"
    designs = ("zero1", *(() if setting.dry else ("ddp", "dear", "ps_load_balanced", "fsdp2")))
    command = (
        *(sys.executable, "-m", "benchmarks.peak_memory", "--alone", *alone),
        *("--strategies", under, "--designs", *designs),
        *setting.where,
        *("--json", str(setting.folder / "memory.json")),
    )
    return Stage("memory", "predicted beside allocated memory", 50, (command,), ("memory.json",))


def profiles(setting: Setting) -> Stage:
    models = (
        ("mobilenet_v2:1",)
        if setting.dry
        else ("resnet50:32", "gpt2:4", "vgg16:32", "bert_base:8", "mobilenet_v2:32",
              "densenet121:32", "transformer:32", "inception_v3:32", "vit_large:8")
    )  # fmt: skip
    command = (
        *(sys.executable, "-m", "benchmarks.roofline_error", *models),
        *("--device", "cpu" if setting.dry else "cuda:0", "--iterations", "2"),
        *("--json", str(setting.folder / "profiles.json")),
    )
    return Stage("profiles", "profiles beside the roofline", 35, (command,), ("profiles.json",))
