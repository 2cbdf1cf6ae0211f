"""What the contest's page says beside its tables."""

from autosync.search.loop.proposing import ROUND_TRIALS

ONE_CORE_A_RANK, SLOWER_CORES = "one_core_a_rank", "slower_cores"
"""Folders of records beside the contest's own."""

REPLAYED_WORDS = f"""`python -m benchmarks.contest.replayed_contest`: a search tries 60 of a
domain's [measured strategies](../datasets/runtimes) in rounds of {ROUND_TRIALS} and refits after
each. A seed leaves it nine tenths of the pool and one of two passes as a trial's seconds; the
answer is, by its best estimate, the fastest of the three that were fastest in their trials, as a
confirmation finds it. Selection and acquisition are the defaults of a tuning.

- `no simulator` takes what is least alike (AutoSync -s), `random` anything. `analytic` and
  `timeline` do not learn.
- `transferred` has learned from the domains of other models alone; the others begin with the
  timeline.
- `genetic` breeds from what it has tried; its children were not measured, so the measured strategy
  most like each stands in. What it would find among unmeasured ones, no pool can say.
- Without both constraints (AutoSync -s -k) nothing can be replayed: every drawn strategy of the
  pools keeps them. What the timeline predicts of such draws stands in
  [Proposals](proposals.md#what-the-timeline-predicts-of-them); `live_contest --competitors drawn
  drawn_unconstrained` measures them.
- The baseline of hit rates is the fastest of `ps_load_balanced`, `horovod` and torch's DDP.
- A pool holds what was worth measuring: random draws, designs, and picks of earlier searches.
  Nothing here is faster than its fastest strategy."""

LIVE_WORDS = """`python -m benchmarks.contest.live_contest`: everyone tries up to 60
settings on the same workers of one emulated cluster. AutoSync tunes three times, with 12, 20 and
60 trials, as `autosync tune` does, but its simulator has learned from the [bundled
measurements](../datasets/runtimes) of other models alone. The others: torch's DDP with Optuna over
`bucket_cap_mb`, DeAR with Bayesian optimization of its buffer, partitioned servers balanced by
bandwidth with Bayesian optimization of the partition, the same of BytePS, which balances its own
way and returns gradients, and torch's DDP, ZeroRedundancyOptimizer and FSDP2 as they come. Every
byte threshold is scaled by s. rho is a ring all-reduce at line rate over compute; NCF's counts its
embedding tables whole, of which an iteration sends the rows that it touched, so that little is left
to gain there. The [limit](simulator.md) is a lower bound for any allowed strategy.

A domain's time scale is k = 2 x ranks / cores of the machine, set before its first trial
(`live_domains`): each rank has two cores at its pace, as hosts of GPU clusters give to a GPU at
least. With less, what ranks do themselves (copies, sums, updates) measures the machine that plays
the cluster as much as the strategies. [With one core a rank](#with-one-core-a-rank) is how the
contest stood before that rule.

All of a domain is of one run on 2026-11-26, on two cores of an AMD EPYC; NCF's is of 2026-11-23 to
25 at k = 2 (at 4 its answer takes 208.2 ms, 98.8 % of the limit, and DDP 208.5). Iterations are
counted from the second on; ResNet-50's repeats on 4x1 from the third, for with busy links the
second is still short of what is held over to the next. After two iterations of warm-up the other
answers take what they took, within 1 % ([below](#what-of-it-is-the-testbeds-own)). On cores that
are two to three times as slow answers take 6 to 8 % more at k = 2 ([below](#on-slower-cores))."""

LEFTOVER_WORDS = """`python -m benchmarks.contest.leftover`: the best strategy of each domain,
recorded; ms of the iteration of median length. On the slowest rank the iteration is its profiled
compute, compute beyond that, updates and waits. On the busiest link it is bytes at line rate,
startups and what links and processors share while messages are under way, and the rest, in which
nothing is under way: because a second half is held whose first half has arrived, because a
gradient waits for others of its message, because a message is sent late, or because there is
nothing to send. Recording costs some time itself.

- NCF: what is beyond the limit is compute, which every strategy takes, torch's DDP too. There is
  nothing to close, and its share of the gap closed is noise.
- ResNet-50 on uneven links: half of what is beyond the limit (3.7 ms) is compute beyond its profile
  and updates, the other half waits at the end. The limit is that of compute alone there.
- VGG-16: what is beyond the limit (1.8 ms) is what ranks do themselves, rebuilding factors; the
  link is idle most of the time.
- BERT-base: the answer is at the limit of schedules (171.4 ms of 171.1 when it was recorded).
- With one core a rank these three lost 7.2, 5.5 and 5.3 ms ([below](#with-one-core-a-rank))."""

SCALES_WORDS = """`python -m benchmarks.contest.time_scales`: on a testbed several ranks share this
machine's cores. What they compute themselves (copies, sums, hooks, updates) is charged to the
iteration, and counts k times less at a time scale of k; bytes, links and profiled compute count
the same at any. The answers after 60 trials, the best other competitor and DDP run again at each
domain's own k (its first line) and slower, in interleaved repeats: what a strategy loses to its
schedule stays, what it loses to shared cores goes. The answers of one core a rank ran at k = 2, 4
and 8 ([below](#with-one-core-a-rank))."""

PARTING_WORDS = """What each answer takes beyond its limit, as a share of the limit, fitted over
these scales as a + b / k (neither below zero): a is left of the schedule and the links, b is what
two cores take that four ranks share, stated at the domain's own k."""

ONE_CORE_WORDS = f"""`python -m benchmarks.contest.live_contest --time-scale 2 -o
benchmarks/contest/records/{ONE_CORE_A_RANK}`: the contest of 2026-11-23 to 25, on a machine of the
same kind, at k = 2, where four ranks share two cores. VGG-16's
answer takes 64.9 ms there and 59.8 with two cores a rank, uneven ResNet-50's 113.0 and 109.5,
BERT-base's 181.7 and 172.0, where DDP takes 199.5 and 192.7, 167.6 and 164.5, 299.3 and 286.2: what
ranks do themselves weighs most where the schedule leaves little else.

AutoSync's searches are of 2026-11-25, most of the others' one or two days older. The repeats, which
alone count, are of one hour in each domain, of two in VGG-16 (20 repeats). On the uneven cluster
everything is of the evening of that day, since testbeds keep [queues short](trials.md#where):
117.9 ms before (89.9 %), and 140.0 (`dear_bo`). There a fast node's windows were longer still than
a slow one's ([equal ones](#on-slower-cores) cost 0 to 2 ms). Hours differ, and not all competitors
feel them alike: four ranks that copy and add on two cores feel another load on the processor's
host, DDP waits for its links. A third hour later VGG-16's answer took 63.1 ms."""

SLOWER_CORES_WORDS = f"""`python -m benchmarks.contest.live_contest --domains vgg16-4x1
resnet50-uneven -o benchmarks/contest/records/{SLOWER_CORES}`: two domains again, everyone anew, in
one evening on a machine of another kind, whose cores take two to three times as long for what
ranks do themselves (VGG-16's updates 3.1 ms where they took 1.1). DDP, which waits for its links,
takes what it took; answers do not. It is not the search: the three strategies that took 113 to
114 ms before take 125 to 127 on this machine, as long as what was found here. Both ends of a pair
have equal windows since ([the testbed](trials.md#where)), which costs these six strategies 0 to
2 ms in turn, where full queues cost 2 to 13. What stays at any time scale is as little as on the
other machine: 0 and 2 % of the limit."""
