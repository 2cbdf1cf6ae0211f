"""The domains of the live contest, fixed before any of its trials."""

from autosync.search.collect.collection_plan import CollectionTarget


def _target(
    name: str, model: str, cluster: str, rho: float, s: str, k: str, optimizer: str
) -> CollectionTarget:
    """The slower a pass, the fewer of its iterations tell as much."""
    iterations = 3 if k == "4" else 4
    return CollectionTarget(
        name, model, cluster, rho, s, k, optimizer, warmup=1, iterations=iterations
    )


DOMAINS = (
    _target("resnet50-4x1", "resnet50", "example-4x1", 1.5, "1/32", "2", "momentum"),
    _target("vgg16-4x1", "vgg16", "example-4x1-40gbe", 3, "1/128", "2", "momentum"),
    _target("bert-base-2x2", "bert_base", "example-2x2", 2, "1/32", "2", "adamw"),
    _target("transformer-2x2", "transformer", "example-2x2", 1.5, "1/32", "4", "adamw"),
    _target("ncf-4x1", "ncf_sparse", "example-4x1", 3, "1/32", "2", "adagrad"),
    _target("resnet50-uneven", "resnet50", "example-uneven", 2, "1/32", "2", "momentum"),
    _target("resnet101-8x1", "resnet101", "example-8x1", 1, "1/128", "4", "momentum"),
)
"""`ring_over_compute` (rho) between 1 and 3; NCF's counts its embedding tables whole, of which an
iteration sends the rows that it touched. Scales as in `datasets/runtimes/plan.yaml`, slower where
its passes repeated badly at k = 1."""


def domain_named(name: str) -> CollectionTarget:
    """Raises SystemExit, which lists the names there are."""
    for each in DOMAINS:
        if each.name == name:
            return each
    raise SystemExit(f"no domain {name!r}; there are {', '.join(d.name for d in DOMAINS)}")
