"""The tables of a soak, from its records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.soak.records import Record
from tests.soak.slopes import Decision, Slope, decide, fit, together

BOUND = 1.0
"""Megabytes an hour."""
WARM_UP = 1 / 12
"""Part of the time that a life must have lasted before its memory is compared."""


@dataclass(frozen=True)
class Growth:
    """The slopes of one figure by seat, in lives that began early enough and did not end, and what they say."""

    lives: dict[str, Slope]
    mean: Slope | None
    decision: Decision


class Soaked:
    """What the records of a soak tell. A run that has not ended yet can be read, too."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.start = self.of("start")[0]
        self.options = self.start["options"]
        self.began = next((record["time"] for record in self.of("begun")), self.start["time"])
        self.last = max(record["time"] for record in records)
        ended = [record["time"] for record in self.of("ended")]
        self.end = ended[0] if ended else self.last
        self.samples: dict[str, list[Record]] = defaultdict(list)
        for sample in self.of("sample"):
            self.samples[sample["seat"]].append(sample)
        self.nodes = [seat for seat in self.samples if seat != "relay"]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def middle(self) -> float:
        """When the last half begins, Unix seconds."""
        return float(self.began + self.end) / 2

    def last_half(self, seat: str) -> list[Record]:
        """The samples of a life that was warm in the middle and did not end before the end; empty without one."""
        warm = WARM_UP * (self.end - self.began)
        samples = [sample for sample in self.samples[seat] if self.middle <= sample["time"] <= self.end]
        if not samples or len({sample["life"] for sample in samples}) > 1:
            return []
        if samples[0]["age"] < warm or samples[-1]["time"] < self.end - 60:
            return []
        return samples

    def growth(self, key: str, unit: float, seats: Sequence[str] | None = None) -> Growth:
        """How a figure of the samples, divided by its unit, grows an hour; of all nodes unless seats are named."""
        lives: dict[str, Slope] = {}
        for seat in self.nodes if seats is None else seats:
            samples = self.last_half(seat)
            slope = fit([s["time"] for s in samples], [s[key] / unit for s in samples])
            if slope is not None:
                lives[seat] = slope
        mean = together(list(lives.values()))
        return Growth(lives, mean, decide(mean, len(lives), BOUND))

    def problems(self) -> list[str]:
        # A second check replaces the first.
        records = [*self.of("account"), *self.of("arrivals")]
        checked = {(record["kind"], record.get("seat")): record for record in records}
        found = [problem for record in checked.values() for problem in record["problems"]]
        found += [f"{record['by']} ended by itself" for record in self.of("attacker ended")]
        for seat in self.nodes:
            found += [f"{seat}: {count} faults in {place}" for place, count in self.faults(seat).items()]
            restarts = max((sample.get("restarts", 0) for sample in self.samples[seat]), default=0)
            found += [f"{seat}: {restarts} restarts of its host"] if restarts else []
        if self.of("ended") and not self.of("arrivals"):
            found.append("the run broke off before it was checked")
        if self.growth("uss", 1e6).decision == "grows":
            found.append("memory grows")
        return found

    def faults(self, seat: str) -> Counter[str]:
        """Faults in background tasks, over all lives."""
        return self._summed(seat, lambda sample: sample.get("faults", {}))

    def sum_of(self, seat: str, key: str) -> float:
        """A counter of a process that begins at 0, over all lives."""
        return self._summed(seat, lambda sample: {key: sample.get(key, 0)})[key]

    def _summed(self, seat: str, counts: Callable[[Record], dict[str, Any]]) -> Counter[str]:
        lives: dict[int, Counter[str]] = defaultdict(Counter)
        for sample in self.samples[seat]:
            # The larger one of each count.
            lives[sample["life"]] |= Counter(counts(sample))
        return sum(lives.values(), Counter[str]())


def tables(soaked: Soaked) -> str:
    options = soaked.options
    minutes = (soaked.end - soaked.began) / 60
    lines = [
        f"{options['nodes']} nodes, {options['attackers']} attackers, {minutes:.1f} of {options['minutes']:g} minutes; "
        f"{soaked.start['commit']}; {soaked.start['machine']}",
        *(line for part in (_nodes, _growths, _attacks, _churn) for line in ("", *part(soaked))),
        "",
    ]
    problems = soaked.problems()
    lines += ["Problems:", "", *(f"- {problem}" for problem in problems)] if problems else ["No problem was found."]
    return "\n".join(lines)


def _nodes(soaked: Soaked) -> list[str]:
    lines = [
        "| Node | Lives | Rounds | Published | Rollouts received | Trained on | Rejected | Processor s "
        "| RSS MB, middle and end | USS MB, middle and end | Open files | Threads | Peers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    accounts = {record["seat"]: record for record in soaked.of("account")}
    for seat, samples in soaked.samples.items():
        half = soaked.last_half(seat)
        account = accounts.get(seat, {})
        edges = [half[:6], half[-6:]] if half else [samples[-6:]]
        memory = [" to ".join(f"{median(s[key] for s in edge) / 1e6:.1f}" for edge in edges) for key in ("rss", "uss")]
        lines.append(
            f"| {seat} | {samples[-1]['life']} | {account.get('rounds', samples[-1].get('round', ''))} "
            f"| {soaked.sum_of(seat, 'rollouts_out'):.0f} | {soaked.sum_of(seat, 'rollouts_in'):.0f} "
            f"| {account.get('external', '')} "
            f"| {soaked.sum_of(seat, 'rejections'):.0f} | {soaked.sum_of(seat, 'processor'):.0f} "
            f"| {memory[0]} | {memory[1]} | {_range(samples, 'files')} | {_range(samples, 'threads')} "
            f"| {_range(samples, 'peers')} |"
        )
    return lines


def _range(samples: Sequence[Record], key: str) -> str:
    values = [sample[key] for sample in samples if key in sample]
    return f"{median(values):.0f} (at most {max(values)})" if values else ""


def _growths(soaked: Soaked) -> list[str]:
    lines = [
        "| In the last half, an hour | Lives | Mean slope | Its standard error | Least and greatest | Below 1 MB |",
        "|---|---|---|---|---|---|",
    ]
    rows: tuple[tuple[str, str, float, list[str] | None], ...] = (
        ("RSS, MB", "rss", 1e6, None), ("USS, MB", "uss", 1e6, None), ("PSS, MB", "pss", 1e6, None),
        ("Open files", "files", 1, None), ("Threads", "threads", 1, None),
        ("RSS of the relay, MB", "rss", 1e6, ["relay"]), ("USS of the relay, MB", "uss", 1e6, ["relay"]),
    )  # fmt: skip
    for title, key, unit, seats in rows:
        growth = soaked.growth(key, unit, seats)
        if growth.mean is None:
            continue
        values = [slope.value for slope in growth.lives.values()]
        lines.append(
            f"| {title} | {len(values)} | {growth.mean.value:+.2f} | {growth.mean.error:.2f} "
            f"| {min(values):+.2f}, {max(values):+.2f} | {growth.decision if 'MB' in title else ''} |"
        )
    return lines


def _attacks(soaked: Soaked) -> list[str]:
    attacks: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in soaked.of("attack"):
        attacks[record["by"], record["attack"]].append(record)
    lines = ["| Attacker | Attack | Times | Seconds | How it ended for the attacker |", "|---|---|---|---|---|"]
    for (by, name), records in sorted(attacks.items()):
        # What stands behind the kind of an error names peers.
        results = Counter(record["result"].partition(":")[0] for record in records)
        seconds = median(record["seconds"] for record in records)
        ends = ", ".join(f"{result} {count}" for result, count in results.most_common())
        lines.append(f"| {by} | {name} | {len(records)} | {seconds:.1f} | {ends} |")
    return lines


def _churn(soaked: Soaked) -> list[str]:
    deaths = Counter(record["asked"] for record in soaked.of("death") if record["time"] <= soaked.end)
    arrivals = soaked.of("arrivals")[-1:]
    heard = f"{arrivals[0]['pairs'] - len(arrivals[0]['problems'])} of {arrivals[0]['pairs']}" if arrivals else "?"
    return [
        f"Stopped by SIGTERM {deaths[15]}, by SIGKILL {deaths[9]}, ended by themselves {deaths[0]}. "
        f"Pairs of which one heard the other in the last quarter: {heard}."
    ]
