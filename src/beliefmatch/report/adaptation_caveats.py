"""What has to be known before the numbers of an adaptation are believed."""

from collections.abc import Iterator

from beliefmatch.experiments.adapt_record import AdaptRecord

__all__ = ["caveats"]


def caveats(record: AdaptRecord) -> list[str]:
    """Warnings, the gravest first; what is merely to be known is in the record's notes."""
    found = [*_seen(record)]
    if record.scored_on == "validation":
        found.append(
            "There were no test examples: these numbers are of the validation examples that chose λ, weight "
            "decay and temperature, and are optimistic. Give test data for unbiased scores."
        )
    if record.targets == "votes":
        found.append(
            "Examples have votes: in scores each counts by the shares of its votes. What resamples examples "
            "takes the class of the most votes for the label."
        )
    return found


def _seen(record: AdaptRecord) -> Iterator[str]:
    """Whether the network knew the examples that chose, unless it clearly did not."""
    seen, why = record.verdict.seen, record.verdict.why
    if seen:
        spoilt = "the choice and the risk thresholds" if record.risk_thresholds else "the choice"
        if record.scored_on == "validation":
            spoilt = "any of these numbers"
        who = "the network has" if record.labels == "same" else "the heads have"
        yield (
            f"Do not rely on {spoilt}: λ was chosen on examples that {who} been trained on. {why} "
            "Choose it on examples that were never trained on."
        )
    elif seen is None:
        fact = "It is unknown whether the network has seen the validation examples"
        if record.labels == "same":
            yield f"{fact}: {why[:1].lower()}{why[1:]} If it has, the chosen λ may be wrong elsewhere."
            return
        _, bracket, measured = why.partition(" (")  # the rest says at length that there is no head to ask
        yield f"{fact}: it has no head for these classes.{bracket}{measured}"
