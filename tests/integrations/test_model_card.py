"""Model cards of Hugging Face, written from records."""

import msgspec
import pytest
import yaml

import adaptations
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.integrations.model_card import model_card
from beliefmatch.methods import METHODS, build
from comparison_records import run
from evaluation_records import HOSTILE, hostile, model, pair
from outside_packages import imported

hub = imported("huggingface_hub")


def written(card, tmp_path):
    """The metadata and the text of a card, as another reader finds them in its file."""
    card.save(tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text("utf-8")
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def values(card):
    return {found.metric_type: found.metric_value for found in card.data.eval_results}


def test_an_evaluation_gives_its_scores_as_metadata_and_its_tables_as_text(tmp_path):
    record = pair()[1]
    card = model_card(record, dataset="cats", split="holdout", license="mit", tags=["vision", "calibration"])
    head, body = written(card, tmp_path)
    (index,) = head["model-index"]
    (result,) = index["results"]
    found = {metric["type"]: metric["value"] for metric in result["metrics"]}
    scores = record.scores
    assert found == {
        "accuracy": pytest.approx(1 - scores["error"].value, abs=1e-6),
        "nll": pytest.approx(scores["nll"].value, abs=1e-6),
        "brier_score": pytest.approx(scores["brier"].value, abs=1e-6),
        "ece": pytest.approx(scores["ece"].value, abs=1e-6),
    }
    assert index["name"] == "belief matching"
    assert result["dataset"] == {"name": "cats", "type": "cats", "split": "holdout"}
    assert result["task"]["type"] == head["pipeline_tag"] == "image-classification"
    assert head["license"] == "mit" and head["tags"] == ["calibration", "uncertainty", "vision"]
    assert body.strip().startswith("# belief matching\n\n**belief matching errs on")
    assert f"{100 * scores['ece'].value:.2f}" in body and "OOD: svhn" in body


@pytest.mark.parametrize("kind", ["new", "votes"])
def test_an_adaptation_gives_the_scores_of_the_delivered_head(kind, tmp_path):
    record = adaptations.record(kind)
    options = {"model_name": "my/model", "task": "text-classification", "dataset_name": "Clouds"}
    card = model_card(record, dataset="clouds", evaluations=adaptations.evaluations(kind), **options)
    head, body = written(card, tmp_path)
    scores = record.delivered(record.new_label).scores
    assert values(card)["ece"] == pytest.approx(scores.ece, abs=1e-6)
    assert values(card)["accuracy"] == pytest.approx(1 - scores.error, abs=1e-6)
    (result,) = head["model-index"][0]["results"]
    assert result["dataset"]["split"] == ("validation" if kind == "new" else "test")
    assert result["dataset"]["name"] == "Clouds"
    assert "# my/model" in body and "## Use" in body and "[" in body
    assert ("optimistic" in body) == (kind == "new")


def test_a_run_gives_its_test_scores(tmp_path):
    record = run("belief_matching:kl_weight=auto", 4, 0, ood=("noise",))
    card = model_card(record, dataset="digits")
    _, body = written(card, tmp_path)
    assert values(card)["nll"] == pytest.approx(record.test.nll, abs=1e-6)
    assert "# belief matching" in body and "540 test examples" in body and "## Use" in body
    assert f"{100 * record.ood[0].auroc['entropy']:.1f}" in body
    assert "## Use" not in model_card(run("softmax", 0, 0), dataset="digits").text


@pytest.mark.parametrize("name", [*METHODS, "of_another_version_with_belief"])
def test_the_section_on_use_is_for_methods_that_read_beliefs(name):
    options = {"kl_weight": 0.01} if name in ("belief_matching", "belief_ensemble") else {}
    reads = build(name, **options).reads if name in METHODS else None
    built = dict(build(name, **options).options) if name in METHODS else {}
    record = msgspec.structs.replace(run("softmax", 0, 0), method=name, options=built)
    assert ("## Use" in model_card(record, dataset="digits").text) == (reads == "belief")


def test_a_card_says_nothing_of_the_machine_or_of_the_command():
    for record in (pair()[0], adaptations.record("new"), run("softmax", 0, 0)):
        card = f"{model_card(record, dataset='d')}"
        for fact in ("a processor", "my clouds.npz", "runs/model.npz", "fingerprint"):
            assert fact not in card
        assert record.created[:10] in card


def test_a_score_that_is_not_finite_is_left_out():
    record = pair()[0]
    scores = {**record.scores, "nll": Number(None, why="infinite")}
    card = model_card(msgspec.structs.replace(record, scores=scores), dataset="cats")
    assert set(values(card)) == {"accuracy", "brier_score", "ece"}
    assert "nan" not in f"{card}".lower().split("---")[1]


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_names_stay_names(place, tmp_path):
    record = hostile()[place]
    head, body = written(model_card(record, dataset="a: b\n- c"), tmp_path)
    assert set(head) <= {"datasets", "model-index", "pipeline_tag", "tags"}
    assert head["datasets"] == ["a: b\n- c"]
    assert "<script" not in body and "<img" not in body and "\x1b" not in body
    assert len([line for line in body.splitlines() if line.startswith("# ")]) == 1


def test_the_hub_library_reads_the_card_again(tmp_path):
    card = model_card(model(), dataset="cats")
    card.save(tmp_path / "README.md")
    again = hub.ModelCard.load(tmp_path / "README.md")
    assert again.data.to_dict() == card.data.to_dict()
    assert again.text == card.text


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"record": {"error": 0.1}}, "record"),
        ({"dataset": ""}, "dataset"),
        ({"dataset": None}, "dataset"),
        ({"task": " "}, "task"),
    ],
)
def test_invalid_arguments_are_named(arguments, argument):
    with pytest.raises((TypeError, ValueError), match=rf"^model_card: `{argument}` must be"):
        model_card(**{"record": pair()[0], "dataset": "cats", **arguments})
