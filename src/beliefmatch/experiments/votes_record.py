"""The record of an analysis of votes, and its options; imports without torch."""

import math
from itertools import pairwise
from typing import Annotated, Any

from msgspec import Meta, field

from beliefmatch._config import Config, Count, Record, RecordPart, Seed
from beliefmatch._errors import fail

__all__ = [
    "VOTES_SCHEMA",
    "AnnotatorRecord",
    "ItemRecord",
    "PrecisionRecord",
    "SimulatedRule",
    "Simulation",
    "StoppingPoint",
    "VotesConfig",
    "VotesRecord",
]

VOTES_SCHEMA = "beliefmatch.votes/1"
LARGEST_PANEL = 501
"""Votes of an item; the exact probability of a majority costs their square for each class."""
FEWEST_VOTES = 10
"""Of an annotator who may be marked as unusual."""
UNUSUAL = -3.0
"""Standard deviations below the expected agreement from which on an annotator may be marked."""
FALSE_MARKS = 0.05
"""Probability that chance marks any annotator of a table."""
_NO_GAIN = 3.0
"""Nats that a model without any information rarely exceeds by its fitted scale and temperature."""
_CLEAR = 2.0
"""Standard deviations by which a replay must differ from what is promised to be warned of."""
_SMALL_SAVING = 0.01
"""Share of the votes from which on a model saves some."""


class VotesConfig(Config, frozen=True, kw_only=True):
    """How votes are analysed.

    Args:
        panel: Number of votes of an item whose majority is sought.
        confidence: Probability of being that majority from which on an item is settled.
        max_votes: Votes of an item that count when the scale of the belief is fitted.
        repetitions: How often a simulation replays the votes, each in another order.
        seed: Of the orders, and of the halves of items that are fitted on and replayed.
        shown: How many items the page shows as the most disputed, and as the next to ask about.
    """

    panel: Annotated[int, Meta(ge=1)] = 5
    confidence: Annotated[float, Meta(gt=0.5, lt=1)] = 0.95
    max_votes: Annotated[int, Meta(ge=2)] = 5
    repetitions: Count = 5
    seed: Seed = 0
    shown: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.panel > LARGEST_PANEL:
            fact = f"`panel` must be at most {LARGEST_PANEL}, got {self.panel}"
            raise fail("VotesConfig", f"{fact}; keep at most {LARGEST_PANEL} votes of each item.")


class ItemRecord(RecordPart, frozen=True):
    """What is known of one item."""

    name: str
    votes: list[int]
    consensus: int
    """The class that is most probably the panel's majority."""
    prob_majority: float
    settled: bool
    gain: float
    """Expected information gain of one more vote, in nats; 0 for settled items, where it is not computed."""


class AnnotatorRecord(RecordPart, frozen=True):
    """How often an annotator agrees with the consensus of the others, and how often the belief expects it."""

    name: str
    votes: int
    agreement: float
    expected: float
    deviation: float
    """In standard deviations; negative where there is less agreement than expected."""

    @property
    def chance(self) -> float:
        """Probability of agreeing as seldom by chance, or a little more.

        It is that of a binomial distribution with the mean of the expected agreements, in whose tail no less
        lies than in that of the sum of votes whose expected agreements differ (Hoeffding 1956).
        """
        return _binomial_tail(round(self.agreement * self.votes), self.votes, self.expected)


def _binomial_tail(most: int, n: int, p: float) -> float:
    """P(X ≤ most) for X of n draws with probability p, summed from the largest term; 1 above the mean."""
    if most >= n * p or p >= 1:
        return float(most >= n * p)
    log_ways = math.lgamma(n + 1) - math.lgamma(most + 1) - math.lgamma(n - most + 1)
    term = math.exp(log_ways + most * math.log(p) + (n - most) * math.log1p(-p))
    total = 0.0
    while term > 1e-9 * total:
        total += term
        term *= most / (n - most + 1) * (1 - p) / p
        most -= 1
    return total


class PrecisionRecord(RecordPart, frozen=True):
    """The precision of a model's belief from one source, fitted to the votes."""

    name: str
    scale: float
    gain: float
    """Nats an item by which its votes are likelier than independent draws from the model's probabilities."""
    temperature: float = 1.0
    """Fitted with the scale, by which the logits are divided; 1 for heads fitted on features."""


class StoppingPoint(RecordPart, frozen=True):
    """What came of asking until a class is the majority with some confidence."""

    confidence: float
    votes: float
    """Mean number of an item."""
    error: float
    """Share of items whose consensus is not the majority of the panel."""
    votes_sd: float = 0.0
    """Over the repetitions."""
    error_sd: float = 0.0
    promised: float | None = None
    """Mean probability, at the stop, that the consensus is not the majority; None for fixed numbers."""


class SimulatedRule(RecordPart, frozen=True):
    """Stopping by one belief, along the confidence."""

    name: str
    points: list[StoppingPoint]
    scale: float | None = None
    """Mean fitted scale, where the belief has one."""
    temperature: float | None = None
    """Geometric mean of the fitted temperatures, where the belief has one."""

    def at(self, confidence: float) -> StoppingPoint:
        """The point of the confidence, or the nearest."""
        return min(self.points, key=lambda one: abs(one.confidence - confidence))

    def votes_at(self, error: float) -> float | None:
        """Votes an item at which the error is reached, by linear interpolation; None where it is not."""
        points = sorted(self.points, key=lambda one: one.votes)
        for before, after in pairwise(points):
            if before.error >= error >= after.error:
                fall = before.error - after.error
                share = 0.0 if fall == 0 else (before.error - error) / fall
                return before.votes + share * (after.votes - before.votes)
        return points[0].votes if points[0].error <= error else None


class Simulation(RecordPart, frozen=True):
    """Replayed votes of the items that have a whole panel."""

    items: int
    rules: list[SimulatedRule]
    fixed: list[StoppingPoint]
    """The same number of votes for every item; the confidence is 0."""
    without_panel: int = 0
    """Items with votes that are fewer than a panel, which are not replayed."""


class VotesRecord(Record, frozen=True):
    """Every number of the report on votes."""

    source: str
    form: str
    """How the file holds the votes: "long", "annotators" or "counts"."""
    recognised: dict[str, str]
    class_names: list[str]
    items: int
    votes: int
    annotators: int
    belief: str
    """What the belief before any vote comes from."""
    scale: float | None
    """Fitted factor on the concentrations of a model; None without a model."""
    prior: list[float] | None
    """Fitted concentrations of the classes; None with a model."""
    settled: int
    votes_saved: int
    """Votes that complete panels of settled items would still take."""
    votes_left: int
    """Votes that complete panels of the other items would take."""
    expected_error: float
    """Mean probability that the consensus is not the majority, over all items."""
    expected_error_settled: float | None
    disputed: list[ItemRecord]
    """Items with votes whose majority is least sure, of equal ones those whose votes differ most."""
    ask_next: list[ItemRecord]
    """Items of the largest gain, in this order."""
    confidences: list[int]
    """Items by their probability of majority, in twenty bins of equal width from 0 to 1."""
    annotator_records: list[AnnotatorRecord]
    dawid_skene: dict[str, float] | None
    """Share of items on which the consensus of Dawid and Skene differs from ours and from the plurality."""
    simulation: Simulation | None
    settings: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    command: list[str] = field(default_factory=list)
    precisions: list[PrecisionRecord] = field(default_factory=list)
    """Of the model, the one that is used first: its votes are the likeliest."""
    largest_votes: int | None = None
    """Number of votes of the item that has most."""
    model_gain: float | None = None
    """Nats by which all votes are likelier under the model's belief than under that of the votes alone."""
    undecided: int | None = None
    """Items whose panel is not complete and may still end in another majority, or in a tie."""
    schema: str = VOTES_SCHEMA

    @property
    def rule(self) -> SimulatedRule | None:
        """The rule that the analysis uses: the precision of a model that is used, else the votes alone."""
        if self.simulation is None:
            return None
        rules = self.simulation.rules
        used = self.precisions[0].name if self.precisions else rules[0 if self.scale is None else 1].name
        return next(rule for rule in rules if rule.name == used)

    @property
    def unusual_annotators(self) -> list[AnnotatorRecord]:
        """Those who agree less than chance explains, among as many annotators."""
        judged = [one for one in self.annotator_records if one.votes >= FEWEST_VOTES]
        return [one for one in judged if one.deviation <= UNUSUAL and one.chance * len(judged) <= FALSE_MARKS]

    def model_doubts(self) -> list[str]:
        """What the votes say against the model, a sentence each."""
        if self.model_gain is None or self.model_gain > _NO_GAIN:
            return []
        return [
            "The votes are no likelier under the model than under one Dirichlet for all items, so its "
            "predictions tell next to nothing about them. Check that its rows are in the order of the items, "
            "and its outputs in the order of the classes."
        ]

    def replay_doubts(self) -> list[str]:
        """What the replay says against stopping by this belief, a sentence each."""
        rule, simulation = self.rule, self.simulation
        if rule is None or simulation is None:
            return []
        found, confidence = [], float(self.settings["confidence"])
        if simulation.without_panel:
            panel = int(self.settings["panel"])
            replayed, short = f"{simulation.items:,}", f"{simulation.without_panel:,}"
            found.append(
                f"{replayed} items are replayed; {short} with fewer than {panel} votes are left out. Where "
                "voting was stopped early, these are the easier ones: votes and error of the replay are then "
                "those of the harder items."
            )
        point, sure = rule.at(confidence), f"{100 * confidence:g} %"
        # panels that tie are never settled, and err as the belief says
        promised = max(1 - confidence, point.promised or 0.0)
        spread = math.hypot(point.error_sd, math.sqrt(promised * (1 - promised) / simulation.items))
        if point.error > promised + _CLEAR * spread:
            errors = f"{100 * point.error:.1f} % of the replayed consensuses are wrong"
            found.append(
                f"Stopping at {sure}, {errors}, where {100 * promised:.1f} % are promised: the probabilities "
                "are too sure, and settled items are less certain than stated."
            )
        alone = simulation.rules[0]
        if rule is not alone:
            other = alone.at(confidence)
            error_spread = math.hypot(point.error_sd, other.error_sd)
            spread = math.hypot(point.votes_sd, other.votes_sd)
            without = alone.votes_at(point.error)
            at_less = alone.votes_at(max(point.error - _CLEAR * error_spread, 0.0))
            if without is not None:
                costs = at_less is not None and at_less < point.votes - _CLEAR * spread
                saves = without > point.votes + max(_CLEAR * spread, _SMALL_SAVING * point.votes)
                if costs or not saves:
                    fact = "costs votes" if costs else "does not clearly save votes"
                    found.append(
                        f"The model {fact}: at an error of {100 * point.error:.1f} % the replay takes "
                        f"{point.votes:.2f} votes an item with it and {without:.2f} without it."
                    )
        return found
