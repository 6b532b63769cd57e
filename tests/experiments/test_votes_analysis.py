"""The analysis of votes: beliefs with and without a model, settled items, annotators, replays."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import binom

from beliefmatch._errors import ArgumentWarning
from beliefmatch._validate import warn
from beliefmatch.adaptation.refit import refit
from beliefmatch.data.votes import VoteColumns, Votes, read_votes
from beliefmatch.experiments.votes import (
    NO_MODEL,
    ONE_PRECISION,
    OWN_PRECISION,
    SOFTMAX_HEAD,
    ModelBelief,
    VotesInput,
    analyse_votes,
    annotator_records,
    item_rows,
    read_inputs,
    simulate,
)
from beliefmatch.experiments.votes_record import AnnotatorRecord, VotesConfig, VotesRecord
from beliefmatch.votes import (
    UnboundedScale,
    fit_class_prior,
    fit_scale,
    prob_of_majority,
    votes_log_likelihood,
)
from refusals import refusal

CLASSES = ("cat", "dog", "fox")


def made_votes(items=300, panel=5, seed=0, votes=None, noisy=None):
    """Votes of twelve annotators, of whom one may vote by chance, and logits that know the classes."""
    rng = np.random.default_rng(seed)
    alpha = np.exp(rng.normal(0, 2, (items, 3)))
    rows = []
    for item in range(items):
        p = rng.dirichlet(alpha[item])
        count = panel if votes is None else rng.integers(0, votes + 1)
        for who in rng.choice(12, count, replace=False):
            rows.append((item, who, rng.integers(3) if who == noisy else rng.choice(3, p=p)))
    rows = torch.tensor(np.array(rows))
    counts = torch.zeros(items, 3, dtype=torch.float64)
    counts.index_put_((rows[:, 0], rows[:, 2]), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
    names = tuple(f"item {i}" for i in range(items))
    people = tuple(f"worker {i}" for i in range(12))
    return Votes("votes.csv", "long", names, CLASSES, counts, people, rows), torch.from_numpy(alpha).log()


def test_without_a_model_the_belief_is_one_dirichlet_for_all_items():
    votes, _ = made_votes(votes=5)
    record, table = analyse_votes(VotesInput(votes), VotesConfig())
    prior = fit_class_prior(votes.counts)
    expected = prob_of_majority(prior.expand_as(votes.counts), 5, votes.counts)
    assert torch.allclose(table.prob_majority, expected.amax(1))
    assert torch.equal(table.consensus, expected.argmax(1))
    assert record.belief == NO_MODEL and record.scale is None
    assert record.prior == pytest.approx(prior.exp().tolist())


def test_a_model_is_the_belief_before_any_vote_times_its_fitted_scale():
    votes, logits = made_votes(votes=5)
    given = VotesInput(votes, ModelBelief("model.npz", logits + 2.0, has_precision=True))
    record, table = analyse_votes(given, VotesConfig())
    scale = fit_scale(logits + 2.0, votes.counts)
    assert record.scale == pytest.approx(scale)
    expected = prob_of_majority(logits + 2.0 + np.log(scale), 5, votes.counts)
    assert torch.allclose(table.prob_majority, expected.amax(1))
    assert table.probs.sum(1).tolist() == pytest.approx([1] * len(votes.items))


def test_the_precision_under_which_the_votes_are_likelier_is_used():
    """Rows of the same probabilities: their own precisions made the votes, or mean nothing."""
    votes, logits = made_votes(items=600, votes=5, seed=11)
    noise = 3 * torch.randn(600, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rows, chosen in ((logits, OWN_PRECISION), (logits.log_softmax(1) + noise, ONE_PRECISION)):
        record, _ = analyse_votes(VotesInput(votes, ModelBelief("m", rows, True)), VotesConfig())
        first, second = record.precisions
        assert first.name == chosen and chosen in record.belief and first.gain > second.gain
        assert record.scale == first.scale
        for one, given in ((first, rows), (second, rows)):
            given = given if one.name == OWN_PRECISION else given.log_softmax(1)
            several = votes.counts.sum(1) >= 2
            given, counts = given[several], votes.counts[several]
            likelihood = votes_log_likelihood(given + np.log(one.scale), counts)
            independent = (counts * given.log_softmax(1)).sum(1).mean()
            assert one.gain == pytest.approx((likelihood - independent).item())


def too_sure(items=1500, seed=21):
    """Votes of whole panels, and a model whose logits are three times those of the mean votes."""
    votes, logits = made_votes(items=items, panel=5, seed=seed)
    return votes, ModelBelief("m", 3 * logits.log_softmax(1), has_precision=True, fits_temperature=True)


def test_a_model_that_is_too_sure_errs_among_settled_items_as_often_as_promised():
    whole, model = too_sure()
    assert whole.rows is not None
    kept = whole.rows[torch.arange(len(whole.rows)) % 5 < 2]  # the first two votes of each item
    counts = torch.zeros_like(whole.counts)
    counts.index_put_((kept[:, 0], kept[:, 2]), torch.ones(len(kept), dtype=torch.float64), accumulate=True)
    two = dataclasses.replace(whole, counts=counts, rows=kept)
    share = (whole.counts == whole.counts.amax(1, keepdim=True)).double()
    wrong = 1 - share / share.sum(1, keepdim=True)

    def errors(model):
        record, table = analyse_votes(VotesInput(two, model), VotesConfig(confidence=0.9))
        found = wrong.gather(1, table.consensus[:, None])[table.settled, 0].mean().item()
        return record, found

    record, realised = errors(model)
    assert record.precisions[0].temperature == pytest.approx(3.0, rel=0.25)
    assert realised == pytest.approx(record.expected_error_settled, abs=0.012)
    assert not record.unusual_annotators
    as_it_comes, realised = errors(model._replace(fits_temperature=False))
    assert {one.temperature for one in as_it_comes.precisions} == {1.0}
    assert realised > 1.5 * as_it_comes.expected_error_settled


def test_a_replay_that_errs_more_than_it_promises_warns():
    votes, model = too_sure(items=800)
    config = VotesConfig(repetitions=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArgumentWarning)
        record, _ = analyse_votes(VotesInput(votes, model), config, replay=True)
    assert not record.replay_doubts()
    assert record.rule is not None
    assert record.rule.temperature == pytest.approx(3.0, rel=0.25)
    point = record.rule.at(0.95)
    assert point.promised == pytest.approx(point.error, abs=0.02)
    with pytest.warns(ArgumentWarning, match="promised"), pytest.warns(ArgumentWarning, match="no likelier"):
        analyse_votes(VotesInput(votes, model._replace(fits_temperature=False)), config, replay=True)


def test_a_replay_in_which_the_model_costs_votes_warns():
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.multinomial(5, [0.9, 0.06, 0.04], 400)).double()
    votes = Votes("v", "counts", tuple(map(str, range(400))), CLASSES, counts)
    wrong = ModelBelief("m", torch.tensor([[0.0, 3.0, 0.0]]).double().expand(400, 3), False, True)
    with pytest.warns(ArgumentWarning, match="costs votes"), pytest.warns(ArgumentWarning, match="likelier"):
        analyse_votes(VotesInput(votes, wrong), VotesConfig(repetitions=2), replay=True)


@pytest.mark.parametrize("wrong", ["rows", "classes", "random"])
def test_a_model_that_tells_nothing_of_the_votes_warns_with_and_without_a_replay(wrong):
    votes, logits = made_votes(items=600, seed=3)
    generator = torch.Generator().manual_seed(0)
    given = {
        "rows": logits[torch.randperm(600, generator=generator)],
        "classes": logits.roll(1, 1),
        "random": 3 * torch.randn(600, 3, generator=generator, dtype=torch.float64),
    }
    useless = VotesInput(votes, ModelBelief("m", given[wrong], True, True))
    with pytest.warns(ArgumentWarning, match="no likelier under the model"):
        record, _ = analyse_votes(useless, VotesConfig())
    assert record.model_gain is not None and record.model_gain < 3
    with (
        pytest.warns(ArgumentWarning, match="likelier"),
        pytest.warns(ArgumentWarning, match="votes an item"),
    ):
        analyse_votes(useless, VotesConfig(repetitions=2), replay=True)
    record, _ = analyse_votes(
        VotesInput(votes, ModelBelief("m", logits, True, True)), VotesConfig(repetitions=2), replay=True
    )
    assert not record.model_doubts() and not record.replay_doubts()


def test_the_gain_of_a_model_is_that_of_the_likelihood_of_all_votes_over_one_dirichlet():
    votes, logits = made_votes(votes=5, seed=4)
    record, _ = analyse_votes(VotesInput(votes, ModelBelief("m", logits, False)), VotesConfig())
    assert record.scale is not None
    model = logits.log_softmax(1) + np.log(record.scale)
    alone = fit_class_prior(votes.counts).expand_as(votes.counts)
    of_model, of_votes = (votes_log_likelihood(z, votes.counts, reduction="sum") for z in (model, alone))
    assert record.model_gain == pytest.approx((of_model - of_votes).item())


def test_probabilities_have_one_precision():
    votes, logits = made_votes(votes=5)
    record, _ = analyse_votes(VotesInput(votes, ModelBelief("m", logits, False)), VotesConfig())
    assert [one.name for one in record.precisions] == [ONE_PRECISION]
    assert record.largest_votes == 5


def test_the_record_counts_what_the_table_of_items_holds():
    votes, logits = made_votes(votes=5, seed=2)
    given = VotesInput(votes, ModelBelief("model.npz", logits, has_precision=True))
    record, table = analyse_votes(given, VotesConfig(confidence=0.9, shown=7))
    left = 5 - votes.counts.sum(1)
    settled = table.prob_majority >= 0.9
    assert torch.equal(table.settled, settled)
    assert record.settled == int(settled.sum()) and record.votes == int(votes.counts.sum())
    assert record.votes_saved == int(left[settled].sum())
    assert record.votes_left == int(left[~settled].sum())
    assert record.expected_error == pytest.approx((1 - table.prob_majority).mean().item())
    assert sum(record.confidences) == len(votes.items)
    asked = table.ask_order
    assert not table.settled[asked].any() and (left[asked] > 0).all()
    assert (table.gain[asked].diff() <= 0).all()
    assert [one.name for one in record.ask_next] == [votes.items[i] for i in asked[:7].tolist()]
    assert len(record.disputed) == 7 and VotesRecord.from_json(record.to_json()) == record
    heading, rows = item_rows(votes, table)
    assert len(rows) == len(votes.items) and all(len(row) == len(heading) for row in rows)
    gains = [row[heading.index("expected_gain")] for row in rows]
    assert [gain == "" for gain in gains] == settled.tolist()  # not computed, and not 0
    ranks = [row[heading.index("ask_order")] for row in rows]
    assert sorted(rank for rank in ranks if rank) == list(range(1, len(asked) + 1))


def test_complete_panels_are_disputed_by_how_much_their_votes_differ():
    counts = torch.tensor([[5, 0, 0], [3, 2, 0], [0, 0, 0], [4, 1, 0], [3, 1, 1], [2, 2, 1]]).double()
    counts = torch.cat([counts, 5 * torch.eye(3).double()])
    votes = Votes("v", "counts", tuple("abcdefghi"), CLASSES, counts)
    record, _ = analyse_votes(VotesInput(votes), VotesConfig(shown=4))
    assert [one.name for one in record.disputed] == ["f", "e", "b", "d"]


def test_the_analysis_does_not_depend_on_the_order_of_votes_and_annotators():
    votes, _ = made_votes(votes=5, seed=3)
    order = torch.randperm(len(votes.rows), generator=torch.Generator().manual_seed(0))
    people = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    rows = votes.rows[order].clone()
    rows[:, 1] = people[rows[:, 1]]
    names = [""] * 12
    for old, new in enumerate(people.tolist()):
        names[new] = votes.annotators[old]
    other = Votes(votes.source, votes.form, votes.items, votes.class_names, votes.counts, tuple(names), rows)
    one, another = (analyse_votes(VotesInput(each), VotesConfig())[0] for each in (votes, other))
    assert one.disputed == another.disputed and one.ask_next == another.ask_next
    agreement = [
        {a.name: (a.votes, a.agreement, a.deviation) for a in record.annotator_records}
        for record in (one, another)
    ]
    assert agreement[0].keys() == agreement[1].keys()
    for name, values in agreement[0].items():
        assert values == pytest.approx(agreement[1][name])


def test_an_annotator_who_votes_by_chance_is_found():
    votes, logits = made_votes(items=400, noisy=4, seed=5)
    for model in (None, ModelBelief("model", logits, has_precision=True)):
        record, _ = analyse_votes(VotesInput(votes, model), VotesConfig())
        assert record.unusual_annotators[0].name == "worker 4"
    plain, logits = made_votes(items=400, seed=6)
    record, _ = analyse_votes(VotesInput(plain, ModelBelief("model", logits, True)), VotesConfig())
    assert not record.unusual_annotators


def test_of_two_thousand_honest_annotators_none_is_marked():
    """Of three standard deviations 2.7 are expected, and more where agreement is likely."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 4000)
    rows = [
        (item, who, rng.integers(3) if rng.random() < 0.06 else truth[item])
        for block in range(0, 4000, 400)
        for item, people in enumerate(rng.permutation(2000).reshape(400, 5), block)
        for who in people
    ]
    rows = torch.tensor(np.array(rows))
    counts = torch.zeros(4000, 3, dtype=torch.float64)
    counts.index_put_((rows[:, 0], rows[:, 2]), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
    people = tuple(map(str, range(2000)))
    votes = Votes("v", "long", tuple(map(str, range(4000))), CLASSES, counts, people, rows)
    record, _ = analyse_votes(VotesInput(votes), VotesConfig())
    assert sum(one.deviation <= -3 for one in record.annotator_records) > 3
    assert not record.unusual_annotators


def test_the_chance_of_an_agreement_is_the_tail_of_a_binomial_distribution():
    for n, agreed, p in ((10, 6, 0.9), (40, 0, 0.3), (5000, 4400, 0.9), (12, 12, 1.0), (12, 11, 1.0)):
        found = AnnotatorRecord("a", n, agreed / n, p, -3.0).chance
        assert found == pytest.approx(binom.cdf(agreed, n, p), rel=1e-8)
    assert AnnotatorRecord("a", 30, 29 / 30, 0.9, 1.0).chance == 1


def test_the_agreement_is_with_the_consensus_of_the_others():
    """Three annotators, one item each way: counted by hand under a flat belief."""
    rows = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 2, 1], [1, 0, 1], [1, 1, 1]])
    counts = torch.tensor([[2.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    votes = Votes("v", "long", ("a", "b"), ("x", "y"), counts, ("p", "q", "r"), rows)
    found = {one.name: one for one in annotator_records(votes, torch.zeros(2, 2, dtype=torch.float64))}
    assert (found["r"].votes, found["r"].agreement) == (1, 0.0)  # against two votes for x
    assert found["r"].expected == pytest.approx(3 / 4)
    # p votes x against one x and one y, a tie that goes to x, and y against one y
    assert (found["p"].votes, found["p"].agreement) == (2, 1.0)
    assert found["p"].expected == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found["p"].deviation == pytest.approx((2 - 7 / 6) / np.sqrt(1 / 4 + 2 / 9))


def test_repeated_votes_of_an_annotator_are_not_those_of_others():
    """p votes x three times and y once, q and r y: p is held against two votes for y alone."""
    rows = torch.tensor(
        [[0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 2, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]
    )
    counts = torch.tensor([[3.0, 3.0], [2.0, 0.0]], dtype=torch.float64)
    votes = Votes("v", "long", ("a", "b"), ("x", "y"), counts, ("p", "q", "r"), rows)
    found = {one.name: one for one in annotator_records(votes, torch.zeros(2, 2, dtype=torch.float64))}
    assert (found["p"].votes, found["p"].agreement) == (4, 0.25)
    assert found["p"].expected == pytest.approx(3 / 4)
    assert (found["q"].votes, found["q"].agreement) == (1, 0.0)  # three votes for x, two for y


@pytest.fixture(scope="module")
def replayed():
    votes, logits = made_votes(items=1500, panel=7, seed=7)
    given = VotesInput(votes, ModelBelief("model", logits, has_precision=True))
    return votes, simulate(given, VotesConfig(repetitions=3))


def test_a_replay_stops_later_and_errs_less_the_more_confidence_it_asks_for(replayed):
    _, simulation = replayed
    assert [rule.name for rule in simulation.rules] == [NO_MODEL, OWN_PRECISION, ONE_PRECISION]
    for rule in simulation.rules:
        votes = [point.votes for point in rule.points]
        assert votes == sorted(votes) and votes[0] >= 0 and votes[-1] <= 5
        assert rule.points[-1].error < rule.points[0].error


def test_a_replay_keeps_the_error_that_it_promises(replayed):
    """The belief that made the votes is calibrated: the error stays below what the confidence allows."""
    _, simulation = replayed
    for point in simulation.rules[1].points:
        assert point.error <= 1 - point.confidence + 0.02


def test_a_replay_of_a_model_saves_votes_where_the_model_knows_the_classes(replayed):
    _, simulation = replayed
    at = {rule.name: {p.confidence: p for p in rule.points} for rule in simulation.rules}
    assert at[OWN_PRECISION][0.95].votes < 0.8 * at[NO_MODEL][0.95].votes
    assert simulation.rules[1].scale == pytest.approx(1.0, rel=0.15)  # the logits are the truth


def test_fixed_numbers_of_votes_err_as_counted(replayed):
    votes, simulation = replayed
    assert [point.votes for point in simulation.fixed] == [1, 2, 3, 4, 5]
    assert simulation.fixed[0].error > simulation.fixed[2].error > simulation.fixed[4].error
    assert simulation.items == len(votes.items)


def test_a_replay_has_a_row_for_the_confidence_of_the_analysis():
    votes, _ = made_votes(items=60, panel=5, seed=8)
    found = simulate(VotesInput(votes), VotesConfig(repetitions=1, confidence=0.93))
    confidences = [point.confidence for point in found.rules[0].points]
    assert 0.93 in confidences and confidences == sorted(confidences) and 0.95 in confidences


def test_a_replay_may_be_judged_by_all_votes_of_the_items():
    """The whole panel of three is then wrong as often as three votes miss the majority of nine."""
    votes, _ = made_votes(items=400, panel=9, seed=12)
    config = VotesConfig(panel=3, repetitions=1)
    of_panel, of_all = (simulate(VotesInput(votes), config, of_all_votes=all_) for all_ in (False, True))
    assert [p.votes for p in of_panel.rules[0].points] == [p.votes for p in of_all.rules[0].points]
    assert of_all.fixed[-1].error > of_panel.fixed[-1].error
    assert of_all.fixed[-1].error < of_all.fixed[0].error


def test_a_replay_is_seeded():
    votes, _ = made_votes(items=60, panel=5, seed=8)
    runs = [simulate(VotesInput(votes), VotesConfig(repetitions=2, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_dawid_and_skene_agree_on_votes_that_agree():
    pytest.importorskip("crowdkit")
    rows = torch.tensor([[i, who, i % 3] for i in range(30) for who in range(4)])
    counts = 4.0 * torch.nn.functional.one_hot(torch.arange(30) % 3, 3).double()
    votes = Votes("v", "long", tuple(map(str, range(30))), CLASSES, counts, ("p", "q", "r", "s"), rows)
    with pytest.warns(UnboundedScale):  # votes that agree have no precision
        record, _ = analyse_votes(VotesInput(votes), VotesConfig(), dawid_skene=True)
    assert record.dawid_skene == {"items": 30, "differs_from_consensus": 0, "differs_from_plurality": 0}


def test_a_panel_smaller_than_the_votes_is_refused_with_the_size_that_it_takes():
    votes, _ = made_votes(items=20, panel=7, seed=9)
    message = refusal(analyse_votes, VotesInput(votes), VotesConfig(panel=5))
    assert "`panel`" in message and "7" in message


def test_a_replay_draws_panels_from_items_with_more_votes_which_are_complete():
    """Six cats of seven votes are settled as cats; of three, two and two votes a tie is not."""
    counts = torch.tensor([[6, 1, 0], [3, 3, 1], [4, 1, 2], [5, 0, 0], [2, 1, 0]]).double()
    votes = Votes("v", "counts", tuple("abcde"), CLASSES, counts)
    with pytest.warns(ArgumentWarning, match="1 with fewer than 5 votes"):
        record, table = analyse_votes(VotesInput(votes), VotesConfig(repetitions=2), replay=True)
    assert record.simulation is not None
    assert (record.simulation.items, record.simulation.without_panel) == (4, 1)
    assert table.prob_majority[:4].tolist() == [1, 0.5, 1, 1]
    assert table.consensus[[0, 2, 3]].tolist() == [0, 0, 0]
    assert table.settled[:4].tolist() == [True, False, True, True] and not table.gain[:4].any()
    left = 2 * (not table.settled[4])
    assert (record.votes_left, record.votes_saved) == (left, 2 - left) and record.undecided == 1


def test_too_large_a_panel_for_a_replay_is_refused_with_the_largest_that_is_not():
    counts = torch.tensor([[6, 1], [3, 3], [4, 0], [0, 0]]).double()
    votes = Votes("v", "counts", tuple("abcd"), ("x", "y"), counts)
    message = refusal(analyse_votes, VotesInput(votes), VotesConfig(panel=7), replay=True)
    assert "`panel` as 6 or less" in message


def test_a_replay_without_the_items_that_were_stopped_early_warns():
    votes, _ = made_votes(items=400, panel=7, seed=13)
    whole, _ = analyse_votes(VotesInput(votes), VotesConfig(panel=7, repetitions=1), replay=True)
    assert whole.simulation is not None and whole.simulation.without_panel == 0
    agree = votes.counts.amax(1) == 7
    counts = torch.where(agree[:, None], votes.counts.clamp(max=3), votes.counts)
    stopped = dataclasses.replace(votes, counts=counts, rows=None)
    with pytest.warns(ArgumentWarning, match=f"{int(agree.sum())} with fewer than 7 votes are left out"):
        record, _ = analyse_votes(VotesInput(stopped), VotesConfig(panel=7, repetitions=1), replay=True)
    assert record.simulation is not None and record.simulation.items == 400 - int(agree.sum())
    assert record.simulation.fixed[2].error > whole.simulation.fixed[2].error  # what it warns of


def test_an_item_is_undecided_where_its_missing_votes_can_make_or_break_a_tie():
    counts = torch.tensor([[3, 0, 0], [2, 0, 0], [2, 1, 0], [2, 1, 1], [2, 2, 1], [0, 0, 0]]).double()
    votes = Votes("v", "counts", tuple("abcdef"), CLASSES, counts)
    with pytest.warns(UnboundedScale):
        record, _ = analyse_votes(VotesInput(votes), VotesConfig())
    assert record.undecided == 4  # b, c, d and f


def test_a_model_needs_items_with_two_votes_to_have_its_scale_fitted():
    votes, logits = made_votes(items=20, panel=1, seed=10)
    given = VotesInput(votes, ModelBelief("m", logits, True))
    assert "two votes" in refusal(analyse_votes, given, VotesConfig())


# Files


def long_file(path, rows):
    path.write_text("item,annotator,label\n" + "\n".join(",".join(row) for row in rows))
    return f"{path}"


ROWS = [("b", "p", "cat"), ("b", "q", "cat"), ("a", "p", "fox"), ("a", "q", "dog")]


def test_predictions_belong_to_items_by_name_and_bring_items_without_votes(tmp_path):
    votes = long_file(tmp_path / "v.csv", ROWS)
    predictions = tmp_path / "p.csv"
    predictions.write_text("item,logit_cat,logit_dog,logit_fox\na,1,2,3\nb,4,5,6\nz,7,8,9")
    given = read_inputs(votes, columns=VoteColumns(), predictions=f"{predictions}")
    assert given.votes.items == ("b", "a", "z") and given.votes.class_names == CLASSES
    assert given.votes.counts.tolist() == [[2, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert given.model is not None
    assert given.model.logits.tolist() == [[4, 5, 6], [1, 2, 3], [7, 8, 9]]


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_the_named_column_of_items_names_the_rows_of_predictions_too(suffix, tmp_path):
    (tmp_path / "v.csv").write_text("doc,count_x,count_y\na,2,0\nb,0,2\n")
    predictions = tmp_path / f"p.{suffix}"
    if suffix == "npz":
        np.savez(predictions, doc=np.array(["b", "a"]), logits=np.array([[1.0, 2.0], [3.0, 4.0]]))
    else:
        predictions.write_text("doc,id,logit_x,logit_y\nb,a,1,2\na,b,3,4")
    votes, columns = f"{tmp_path / 'v.csv'}", VoteColumns(item="doc")
    given = read_inputs(votes, columns=columns, predictions=f"{predictions}")
    assert given.votes.items == ("a", "b")
    assert given.model is not None and given.model.logits.tolist() == [[3, 4], [1, 2]]
    assert given.votes.recognised is not None and "doc" in given.votes.recognised.values()


def test_named_columns_of_predictions_follow_the_class_names_that_are_given(tmp_path):
    votes = long_file(tmp_path / "v.csv", ROWS)
    (tmp_path / "p.csv").write_text("item,logit_fox,logit_cat,logit_dog\na,3,1,2\nb,6,4,5")
    given = read_inputs(
        votes, columns=VoteColumns(), predictions=f"{tmp_path / 'p.csv'}", class_names=list(CLASSES)
    )
    assert given.votes.class_names == CLASSES
    assert given.model is not None and given.model.logits.tolist() == [[4, 5, 6], [1, 2, 3]]


def test_the_order_of_columns_of_counts_is_said_where_it_decides_the_classes(tmp_path):
    (tmp_path / "v.csv").write_text("item,count_dog,count_cat\na,2,0\nb,0,2\n")
    np.savez(tmp_path / "p.npz", logits=np.array([[1.0, 2.0], [3.0, 4.0]]))
    given = read_inputs(f"{tmp_path / 'v.csv'}", columns=VoteColumns(), predictions=f"{tmp_path / 'p.npz'}")
    assert given.votes.class_names == ("dog", "cat")
    assert given.votes.recognised is not None
    assert given.votes.recognised["classes of predictions"] == "the order of the columns of counts"


def test_rows_without_the_named_column_of_items_are_taken_in_their_order_with_a_warning(tmp_path):
    (tmp_path / "v.csv").write_text("doc,count_x,count_y\na,2,0\nb,0,2\n")
    (tmp_path / "p.csv").write_text("logit_x,logit_y\n1,2\n3,4")
    with pytest.warns(ArgumentWarning, match="`predictions` .* has no column 'doc'"):
        given = read_inputs(
            f"{tmp_path / 'v.csv'}", columns=VoteColumns(item="doc"), predictions=f"{tmp_path / 'p.csv'}"
        )
    assert given.model is not None and given.model.logits.tolist() == [[1, 2], [3, 4]]


def test_rows_of_an_archive_belong_to_numbered_items(tmp_path):
    votes = long_file(tmp_path / "v.csv", [("1", "p", "0"), ("1", "q", "2"), ("0", "p", "1")])
    np.savez(tmp_path / "p.npz", probs=np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]))
    given = read_inputs(votes, columns=VoteColumns(), predictions=f"{tmp_path / 'p.npz'}")
    assert given.model is not None and not given.model.has_precision
    assert given.votes.class_names == ("0", "1", "2")
    expected = torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.25, 0.25]], dtype=torch.float64)
    assert torch.allclose(given.model.logits.exp(), expected)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_large_numbers_and_padded_texts_name_the_same_items_in_votes_and_predictions(suffix, tmp_path):
    ids = [1_234_567, 12_345_678, 9_007_199_254_740_001]
    votes = long_file(tmp_path / "v.csv", [(f"{i}", who, "01"[who == "q"]) for i in ids for who in "pq"])
    predictions = tmp_path / f"p.{suffix}"
    if suffix == "npz":
        np.savez(predictions, item=np.array(ids[::-1]), logits=np.arange(6.0).reshape(3, 2))
    else:
        lines = [f" {i} ,{2 * row},{2 * row + 1}" for row, i in enumerate(ids[::-1])]
        predictions.write_text("\n".join(["item,logit_0,logit_1", *lines]))
    given = read_inputs(votes, columns=VoteColumns(), predictions=f"{predictions}")
    assert given.votes.items == tuple(map(str, ids))
    assert given.model is not None and given.model.logits.tolist() == [[4, 5], [2, 3], [0, 1]]


def test_features_are_cross_fitted(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 4))
    shares = np.exp(2 * features[:, :3])
    counts = np.stack([rng.multinomial(5, p / p.sum()) for p in shares])
    np.savez(tmp_path / "v.npz", counts=counts, features=features.astype(np.float32))
    path = f"{tmp_path / 'v.npz'}"
    given = read_inputs(path, columns=VoteColumns(), features=path)
    assert given.model is not None
    votes, shares = torch.from_numpy(counts), torch.from_numpy(counts.sum(0) / counts.sum())
    nll = -(votes * given.model.logits.log_softmax(1)).sum() / votes.sum()
    base = -(votes * shares.log()).sum() / votes.sum()
    assert nll < 0.85 * base  # of votes that the heads have not seen
    assert given.model.softmax is not None
    softmax = -(votes * given.model.softmax.log_softmax(1)).sum() / votes.sum()
    assert softmax == pytest.approx(nll.item(), rel=0.03) and not torch.equal(
        given.model.softmax, given.model.logits
    )
    found = simulate(given, VotesConfig(repetitions=1))
    assert [rule.name for rule in found.rules] == [NO_MODEL, OWN_PRECISION, ONE_PRECISION, SOFTMAX_HEAD]
    alone = ModelBelief("softmax", given.model.softmax, has_precision=True)
    again = simulate(VotesInput(given.votes, alone), VotesConfig(repetitions=1))
    assert found.rules[3].points == again.rules[2].points  # with one precision
    assert found.rules[3].at(0.95).votes < found.rules[0].at(0.95).votes


def test_the_heads_of_the_folds_have_one_lambda_and_warnings_name_the_features(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    counts = rng.multinomial(3, [0.5, 0.3, 0.2], 120)
    np.savez(tmp_path / "v.npz", counts=counts, features=rng.normal(size=(120, 3)).astype(np.float32))
    configs = []

    def watched(*args, adapt_config, **kwargs):
        configs.append(adapt_config)
        warn("adapt", "`validation` has few rows")
        return refit(*args, adapt_config=adapt_config, **kwargs)

    monkeypatch.setattr("beliefmatch.experiments.votes.refit", watched)
    with pytest.warns(ArgumentWarning) as held:
        read_inputs(f"{tmp_path / 'v.npz'}", columns=VoteColumns(), features=f"{tmp_path / 'v.npz'}")
    assert configs[0].kl_weights is None and len(configs) == 11
    for of_folds in (configs[1::2], configs[2::2]):  # of belief matching, and of the softmax control
        assert len({(*one.kl_weights, *one.weight_decays) for one in of_folds}) == 1
    texts = [f"{one.message}" for one in held]
    assert "votes: `features` has few rows" in texts and len(texts) == len(set(texts))
    assert not any("`validation`" in text or text.startswith("adapt") for text in texts)


def test_features_that_cannot_be_fitted_on_are_refused_by_their_name(tmp_path):
    features = np.ones((60, 2), dtype=np.float32)
    features[3] = np.nan
    np.savez(tmp_path / "v.npz", counts=np.tile([[1, 2]], (60, 1)), features=features)
    path = f"{tmp_path / 'v.npz'}"
    assert "`features`" in refusal(read_inputs, path, columns=VoteColumns(), features=path)


@pytest.mark.parametrize(
    ("content", "options", "argument"),
    [
        ("item,logit_cat,logit_dog,logit_fox\na,1,2,3", {}, "predictions"),
        ("item,logit_cat,logit_dog,logit_fox\na,1,2,3\nb,1,2,3\nb,1,2,3", {}, "item"),
        ("item,logit_0,logit_1,logit_2\na,1,2,3\nb,1,2,3", {}, "class_names"),
        ("logit_cat,logit_dog,logit_fox\n1,2,3\n1,2,3", {}, "predictions"),
        ("item,logit_cat,logit_dog\na,1,2\nb,1,2", {}, "label"),
        ("item,logit_cat,logit_dog,logit_fox\na,1,2,3\nb,1,2,3", {"features": "f.npz"}, "predictions"),
    ],
)
def test_predictions_that_do_not_fit_the_votes_are_refused_by_name(content, options, argument, tmp_path):
    votes = long_file(tmp_path / "v.csv", ROWS)
    (tmp_path / "p.csv").write_text(content)
    message = refusal(
        read_inputs, votes, columns=VoteColumns(), predictions=f"{tmp_path / 'p.csv'}", **options
    )
    assert f"`{argument}`" in message


def test_a_million_votes_take_seconds(tmp_path):
    """Not timed: the work is bounded by rows that differ, of which there are few without a model."""
    rng = np.random.default_rng(0)
    counts = np.stack([np.bincount(row, minlength=4) for row in rng.integers(4, size=(2000, 3))])
    np.savez(tmp_path / "v.npz", counts=np.tile(counts, (170, 1)))
    votes = read_votes(tmp_path / "v.npz")
    with pytest.warns(UnboundedScale):  # votes by chance scatter as independent draws
        record, table = analyse_votes(VotesInput(votes), VotesConfig())
    assert record.votes == 1_020_000 and len(table.consensus) == 340_000
