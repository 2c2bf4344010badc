"""The loader beside torch's DataLoader and a pool of Ray actors, in a feed benchmark that is not part of this repository.

make peers PEERS=folder-of-the-benchmark ARGS="--workloads vivit-b --seeds 0 1"

The benchmark emulates eight ranks and 96 cores: samples of a dataset are made by sleeping, and so is compute. Here are
the plug-in (`feed`), a runner that goes through workloads and seeds, and the table. Baselines are those that the
benchmark's folder has recorded (`results-baselines.json`); with `--live` they are run as well, in turn, which needs ray.
Writes target/results/peers.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "target" / "results"
#: Batches that a rank may hold or have under way: those that torch's loader has with 12 workers, and the one in use.
LOOKAHEAD = 25
#: Waits that are to be no longer than any other system's; what was recorded has not all of them.
TAIL = ("p95_wait_s", "p99_wait_s", "max_wait_s")


class Described:
    """The benchmark's dataset; its descriptions say what a sample costs the rank as well."""

    def __init__(self, dataset: Any, workload: dict[str, Any]) -> None:
        self.dataset, self.compute = dataset, workload["compute"]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]

    def describe(self, i: int) -> dict[str, Any]:
        known = self.dataset.describe(i)
        tokens, c = known["tokens"], self.compute
        # The sample that is made is a few numbers, whatever the clip would have been.
        return {**known, "out_bytes": 1024, "cost": c["fixed"] + c["a"] * tokens + c["b"] * tokens**2}

    def part(self, i: int, k: int, n: int) -> Any:
        return self.dataset.part(i, k, n)

    def join(self, i: int, parts: list[Any]) -> Any:
        return self.dataset.join(i, parts)


def feed(rank: int, world: int, dataset: Any, workload: dict[str, Any], order: Any, options: dict[str, Any]) -> Any:
    """What the benchmark calls in each rank: an iterator of micro-batches."""
    import helix_shm as hx
    from dataset import Batch  # of the benchmark

    size, move, equal = workload["batch"], workload["move"], workload.get("equal_counts", True)
    each = size * workload["accum"]
    batches = [
        [i for micro in order.micro(k, r) for i in micro] for k in range(order.total_steps) for r in range(world)
    ]
    balance: Any = "none"
    if move != "none":
        balance = "cost" if equal else {"most": 4 * each}
    loader = hx.Loader(
        Described(dataset, workload),
        batch_sampler=batches,
        num_workers=options["cores"] // world,
        batch_size=each,
        # What moves together: a bucket's whole batch, or a single sample.
        micro_batch=size if move == "microbatch" else 1,
        balance=balance,
        regroup=options.get("regroup", 1),
        # Whoever is overtaken by a second attempt is ended, and would count as decoding for ever.
        hedge=False,
        policy=options.get("policy"),
        # Two seconds of the benchmark's clock, which runs faster.
        split_ms=max(round(2000 / dataset.timescale), 1),
        lookahead=options.get("lookahead", LOOKAHEAD),
        rank=rank,
        world_size=world,
        job=Path(options["run_dir"]).name,
        name="feed",
        socket=str(Path(options["run_dir"]) / "socket"),
    )
    iterator = iter(loader)
    # Starting the workers is not counted, as starting the pool of Ray is not: 96 interpreters take a small machine long.
    while not loader.is_ready():
        time.sleep(0.01)

    def micro_batches() -> Any:
        try:
            for rows in iterator:
                cut = size if move == "microbatch" and workload["accum"] > 1 else len(rows)
                for first in range(0, len(rows), cut):
                    yield Batch(rows[first : first + cut], first + cut >= len(rows))
        finally:
            if options.get("stats"):
                print(f"rank {rank}: {json.dumps(loader.stats(), default=str)}", file=sys.stderr)
            loader.close()

    return micro_batches()


def geometric(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def row(name: str, value: float, unit: str, target: str, command: str) -> dict[str, Any]:
    holds = True
    if target:
        relation, number = target.split()
        limit = float(number)
        holds = {">=": value >= limit, "<=": value <= limit, "=": value == limit}[relation]
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds, "command": command}


def rows_of(ours: list[dict[str, Any]], others: list[dict[str, Any]], command: str) -> list[dict[str, Any]]:
    """A row for each figure of a run, and those that have a target."""
    rows = []
    below, late = 0, 0
    for r in ours:
        name = f"peers.{r['workload']}.{r['seed']}" + (f".regroup{r['regroup']}" if r["regroup"] > 1 else "")
        for key in ("throughput", "of_perfect", "of_movable", "miss_rate", "p99_wait_s", "max_wait_s", "mean_wait_s"):
            target = ">= 0.9" if key == "of_movable" and r["regroup"] == 1 else ""
            rows.append(row(f"{name}.{key}", r[key], "s" if key.endswith("_s") else "", target, command))
        rows.append(row(f"{name}.ids_ok", float(r["ids_ok"]), "", "= 1", command))
        if r["regroup"] == 1:
            peers = [o for o in others if o["workload"] == r["workload"] and o["seed"] == r["seed"]]
            below += sum(r["throughput"] < 0.98 * o["throughput"] for o in peers)
            late += sum(any(r[key] > o.get(key, math.inf) for key in TAIL) for o in peers)
    plain = [r for r in ours if r["regroup"] == 1]
    if plain:
        rows.append(row("peers.of_movable", geometric([r["of_movable"] for r in plain]), "", ">= 0.95", command))
        rows.append(row("peers.worst_of_movable", min(r["of_movable"] for r in plain), "", ">= 0.9", command))
        rows.append(row("peers.runs_of_others_with_more_throughput", below, "", "= 0", command))
        rows.append(row("peers.runs_of_others_with_shorter_long_waits", late, "", "= 0", command))
    regrouped = [r["of_perfect"] for r in ours if r["regroup"] > 1]
    if regrouped:
        rows.append(row("peers.regroup8_of_perfect", geometric(regrouped), "", ">= 0.92", command))
    return rows


def table(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Shares of the movable bound side by side, and the waits."""
    systems = list(dict.fromkeys(o["system"] for o in others))
    head = ["workload", "seed", *systems, "helix", "of perfect", "p95 s", "best other", "p99 s", "best other"]
    head += ["longest s", "best other", "ids"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in ours:
        peers = {o["system"]: o for o in others if o["workload"] == r["workload"] and o["seed"] == r["seed"]}
        p99 = min((o.get("p99_wait_s", math.nan) for o in peers.values()), default=math.nan)
        p95, longest = (min((o[k] for o in peers.values()), default=math.nan) for k in ("p95_wait_s", "max_wait_s"))
        shares = [f"{peers[s]['of_movable']:.3f}" if s in peers else "–" for s in systems]
        name = r["workload"] + (f", {r['regroup']} steps regrouped" if r["regroup"] > 1 else "")
        cells = [name, str(r["seed"]), *shares, f"{r['of_movable']:.3f}", f"{r['of_perfect']:.3f}"]
        waits = (r["p95_wait_s"], p95, r["p99_wait_s"], p99, r["max_wait_s"], longest)
        cells += ["–" if math.isnan(w) else f"{w:.3f}" for w in waits] + ["exact" if r["ids_ok"] else "WRONG"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument(
        "--peers", default=os.environ.get("PEERS"), help="folder of the benchmark; or PEERS in the environment"
    )
    a.add_argument("--workloads", nargs="+", default=["all"])
    a.add_argument("--seeds", nargs="+", type=int, default=[0])
    a.add_argument("--regroup", type=int, default=1)
    a.add_argument(
        "--timescale-factor", type=float, default=1.0, help="0.5: at half speed, where this machine is busy"
    )
    a.add_argument("--json", help="file for all that was measured; with what it has already, this goes on")
    a.add_argument("--live", action="store_true", help="run the baselines as well")
    a.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the plug-in, e.g. lookahead=9"
    )
    args = a.parse_args()
    if not args.peers or not Path(args.peers, "e2e.py").is_file():
        sys.exit("peers: say where the feed benchmark is: --peers FOLDER, which has an e2e.py")
    sys.path[:0] = [args.peers, str(Path(__file__).parent)]
    import compare
    import e2e
    import pool as ray_pool
    import trace as traces

    signal.signal(signal.SIGTERM, e2e.on_signal)
    known = traces.workloads()
    names = list(known) if args.workloads == ["all"] else args.workloads
    options = {**dict(map(e2e.typed, args.option)), **({"regroup": args.regroup} if args.regroup > 1 else {})}
    command = f"make peers PEERS=… ARGS='{' '.join(passed(sys.argv[1:]))}'"
    recorded = json.loads(Path(args.peers, "results-baselines.json").read_text())["results"]
    others = [r for r in recorded if "error" not in r and r["ids_ok"]]
    ours: list[dict[str, Any]] = []
    if args.json and Path(args.json).is_file():
        ours = [r for r in json.loads(Path(args.json).read_text()) if r["regroup"] == args.regroup]
    done = {(r["workload"], r["seed"]) for r in ours}
    actors = ray_pool.Pool(96) if args.live else None
    if args.live:
        others = []
    try:
        for seed in args.seeds:
            for name in names:
                if (name, seed) in done:
                    continue
                for spec in compare.BASELINES if args.live else []:
                    system, given = compare.parse(spec)
                    r = e2e.run(system, known[name], seed, given, args.timescale_factor, pool=actors, label=spec)
                    if "error" in r:
                        print(f"{name} · {spec}: {r['error']}", file=sys.stderr)
                    else:
                        others.append(r)
                r = e2e.run("plugin:peers:feed", known[name], seed, options, args.timescale_factor, pool=actors)
                if "error" in r:
                    sys.exit(f"{name}: {r['error']}")
                r["regroup"] = args.regroup
                ours.append(r)
                print(f"{time.strftime('%H:%M:%S')} {e2e.table(r)}", file=sys.stderr, flush=True)
                keep(ours, others, command)
                if args.json:
                    Path(args.json).write_text(json.dumps(ours))
    finally:
        if actors is not None:
            actors.close()
    keep(ours, others, command)
    print(table(ours, others))


def passed(given: list[str]) -> list[str]:
    """The arguments of a command that is told, less what depends on the machine."""
    pairs = list(zip(given, [*given[1:], ""]))
    return [
        arg for (before, _), (arg, _) in zip([("", ""), *pairs], pairs) if not {arg, before} & {"--peers", "--json"}
    ]


def keep(ours: list[dict[str, Any]], others: list[dict[str, Any]], command: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "peers-regroup" if ours[0]["regroup"] > 1 else "peers"
    (RESULTS / f"{name}.json").write_text(json.dumps(rows_of(ours, others, command), indent=1))


if __name__ == "__main__":
    main()
