"""The record of an analysis of votes, and its options; imports without torch."""

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
"""Standard deviations below the expected agreement from which on an annotator is marked."""


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
    """Expected information gain of one more vote, in nats."""


class AnnotatorRecord(RecordPart, frozen=True):
    """How often an annotator agrees with the consensus of the others, and how often the belief expects it."""

    name: str
    votes: int
    agreement: float
    expected: float
    deviation: float
    """In standard deviations; negative where there is less agreement than expected."""

    @property
    def is_unusual(self) -> bool:
        """Whether that is less than chance explains."""
        return self.votes >= FEWEST_VOTES and self.deviation <= UNUSUAL


class PrecisionRecord(RecordPart, frozen=True):
    """The precision of a model's belief from one source, fitted to the votes."""

    name: str
    scale: float
    gain: float
    """Nats an item by which its votes are likelier than independent draws from the model's probabilities."""


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


class SimulatedRule(RecordPart, frozen=True):
    """Stopping by one belief, along the confidence."""

    name: str
    points: list[StoppingPoint]
    scale: float | None = None
    """Mean fitted scale, where the belief has one."""


class Simulation(RecordPart, frozen=True):
    """Replayed votes of the items that have a whole panel."""

    items: int
    rules: list[SimulatedRule]
    fixed: list[StoppingPoint]
    """The same number of votes for every item; the confidence is 0."""


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
    """Items with votes whose majority is least sure, whatever further votes would tell."""
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
    schema: str = VOTES_SCHEMA
