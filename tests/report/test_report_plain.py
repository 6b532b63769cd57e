"""Plain words and readable names: no name of the program's own insides, no label cut beyond recognition."""

import pytest
from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Confusion
from beliefmatch.report.evaluation_scores import every_score, score_names
from beliefmatch.report.evaluation_tables import to_csv, to_markdown
from beliefmatch.report.evaluation_text import class_labels, clipped
from beliefmatch.report.page import render_page
from beliefmatch.report.page_facts import facts
from evaluation_records import model, three
from html_page import Page


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("cat", 5, "cat"),
        ("ship sailing on the ocean", 20, "ship sailing on the…"),
        ("ship sailing on the ocean", 18, "ship sailing on…"),
        ("a verylongwordwithoutspaces", 12, "a verylongw…"),
        ("lorry, articulated", 8, "lorry…"),
    ],
)
def test_long_labels_end_with_a_word(text, width, expected):
    assert clipped(text, width) == expected and len(expected) <= max(width, len(text))


def test_labels_that_would_look_the_same_are_cut_in_the_middle():
    names = ["great white shark, male", "great white shark, female", "hen"]
    record = replace(model(classes=names, examples=40, images=False), confusion=Confusion(None, []))
    labels = class_labels(record, 16)
    assert labels == ["great whit…male", "great whit…emale", "hen"]


def test_a_matrix_shows_long_names_by_their_beginning_and_holds_the_whole():
    long = "ship sailing on the open ocean at night"
    page = Page(render_page([model(classes=["cat", "dog", long], examples=60, images=False)]))
    heads = [
        e
        for e in page.all("bdi")
        if e.get("title") == long and e["text"] == "ship sailing on the open ocean at…"
    ]
    assert len(heads) == 2  # of its row and of its column


def test_settings_are_told_in_words():
    settings = {
        "n_bins": 15,
        "top_k": 5,
        "risks": [0.01, 0.05],
        "targets_sha256": "abc",
        "fields": {"probs": "p", "targets": "y", "unused": "logits"},
        "ood_fields": {"my_set": {"logits": "z"}},
        "new_one": {"a": [1, 2]},
    }
    records = [replace(model(examples=40, images=False), settings=settings)]
    told = {name: texts[0] for title, lines in facts(records) for name, texts in lines if title == "Settings"}
    assert told == {
        "confidence bins": "15",
        "classes that top-k error may name": "5",
        "risks to control": "0.01, 0.05",
        "SHA-256 of the targets": "abc",
        "probabilities are called": "p",
        "targets are called": "y",
        "not used": "logits",
        "my_set: logits are called": "z",
        "new one": "a: 1, 2",
    }
    text = render_page(records)
    for inner in ("fields.", "ood_fields", "targets_sha256", "top_k", "logical_cores", "resamples_drawn"):
        assert f">{inner}" not in text


def with_twins(record):
    """As real records: energy and −ln α₀ are one number."""

    def twins(found):
        kept = {detection.score: detection for detection in found}
        return [replace(kept["precision"], score=d.score) if d.score == "energy" else d for d in found]

    ood = [replace(each, detections=twins(each.detections)) for each in record.ood]
    return replace(record, misclassification=twins(record.misclassification), ood=ood)


def test_energy_is_listed_once_where_it_is_the_same_as_the_precision():
    records = [with_twins(record) for record in three()]
    assert score_names(records) == every_score(records)[:-1] == score_names(three())[:-1]
    page = Page(render_page(records))
    options = [(e["value"], e["text"]) for e in page.all("option")]
    assert ("precision", "−ln α₀ (energy)") in options and "energy" not in dict(options)
    assert to_markdown(records).count("energy") == to_markdown(records).count("−ln α₀ (energy)") > 0
    assert ",energy," in to_csv(records) and ",precision," in to_csv(records)  # a file keeps both names


def test_energy_that_differs_or_stands_alone_is_listed():
    apart = [with_twins(three()[0]), three()[1]]
    assert score_names(apart)[-2:] == ["precision", "energy"]
    plain = model(examples=60, scores=("entropy", "confidence"), images=False)
    assert score_names([with_twins(three()[0]), plain])[-1] == "precision"
