"""The page of a comparison as text, its files, and the command that makes the page again."""

import base64
import json
import re
from io import BytesIO
from statistics import fmean, stdev

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from beliefmatch._files import LEDGER, atomic_write_dir
from beliefmatch.cli import main
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report import comparison_files as files_module
from beliefmatch.report.comparison_files import comparison_files
from beliefmatch.report.comparison_page import render_comparison
from beliefmatch.report.page import render_page
from commands import python
from comparison_records import (
    FIVE,
    SETS,
    comparison,
    evaluations,
    evaluations_of_five,
    five,
    hostile_comparison,
)
from evaluation_records import HOSTILE
from html_page import Page, data_of, row


@pytest.fixture(scope="module")
def page():
    return Page(render_comparison(five(), evaluations_of_five()))


def section(page, name):
    (found,) = page.all("section", id=name)
    return " ".join(found["text"].split())


def test_the_page_begins_with_what_holds_over_all_seeds(page):
    ids = [element["id"] for element in page.all("section")]
    assert ids[:7] == ["over-seeds", "ood", "costs", "choices", "learning", "rotation", "training"]
    assert ids[7] == "summary"
    (title,) = page.all("title")
    assert title["text"] == "Comparison of 5 methods"
    (part,) = page.all("div", id="evaluation")
    assert "The predictors of seed 0 in detail" in part["text"]
    links = [element["href"] for element in page.all("a") if element["href"].startswith("#")]
    everything = {element.get("id") for element in page.elements}
    assert {link[1:] for link in links} <= everything


def test_cells_hold_means_deviations_and_each_seed(page):
    cells = row(page, "Error")
    for method, cell in zip(five().methods, cells, strict=True):
        errors = [run.test.error for run in method.runs]
        words = f"{100 * fmean(errors):.2f} ± {100 * stdev(errors):.2f}"
        assert " ".join(cell["text"].replace("★best", "").replace("≈overlaps the best", "").split()) == words
        seeds = [f"seed {run.seed}: {100 * run.test.error:.2f}" for run in method.runs]
        assert cell["title"] == ", ".join(seeds)
    (best,) = (index for index, cell in enumerate(cells) if "best" in cell["class"].split())
    means = [fmean(run.test.error for run in method.runs) for method in five().methods]
    assert means[best] == min(means)
    details = [element["text"] for element in page.all("details") if element.get("class") == "seeds"]
    assert len(details) == 2 and f"{100 * five().methods[0].runs[1].test.error:.2f}" in details[0]


def test_ood_sets_costs_and_choices_are_told(page):
    ood = section(page, "ood")
    assert all(name in ood for name in SETS)
    areas = [run.ood[2].auroc["mutual_information"] for run in five().methods[4].runs]
    assert f"{100 * fmean(areas):.2f} ± {100 * stdev(areas):.2f}" in ood
    costs = section(page, "costs")
    assert "60,170" in costs and "0.0615 5.0×" in costs
    assert "chosen" in section(page, "choices") and "kl_weight" in section(page, "choices")


def test_how_it_was_trained_is_told(page):
    training = section(page, "training")
    facts = ("training.epochs12", "digest" + "5f2c" * 16, "torch2.13.0", "data.validation0.2", "seeds0, 1, 2")
    for words in ("beliefmatch compare --seeds 3", "kl_weight = 0.003", *facts):
        assert words in training
    assert page.all("code")[0]["text"] == "beliefmatch compare --seeds 3"


def test_a_list_of_words_becomes_a_command_that_a_shell_takes():
    record = replace(five(), settings={"command": ["beliefmatch", "compare", "--set", "a b=<c>"]})
    shown = Page(render_comparison(record, evaluations_of_five()))
    assert shown.all("code")[0]["text"] == "beliefmatch compare --set 'a b=<c>'"


def test_the_digit_is_pictured_at_every_angle(page):
    images = [element for element in page.all("img") if "turned by" in element["alt"]]
    assert [image["alt"] for image in images][:2] == ["the 3, turned by 0°", "the 3, turned by 15°"]
    for image, expected in zip(images, five().rotated_digit.images, strict=True):
        decoded = Image.open(BytesIO(base64.b64decode(image["src"].partition(",")[2])))
        shown = 1 - np.asarray(decoded, dtype=float) / 255
        np.testing.assert_allclose(shown, np.asarray(expected), atol=0.5 / 255)


def test_plots_hold_the_curves_of_every_network(page):
    plots = {plot["id"]: plot for plot in data_of(page)["plots"]}
    assert list(plots)[:5] == [
        "learning-loss", "learning-validation_error", "rotation-confidence", "rotation-mean", "rotation-kept",
    ]  # fmt: skip
    traces = plots["learning-loss"]["data"]
    assert [sum(t["meta"]["model"] == index for t in traces) for index in range(5)] == [4, 4, 4, 16, 4]
    losses = [run.curves[0]["loss"] for run in five().methods[0].runs]
    means = [fmean(epoch) for epoch in zip(*losses, strict=True)]
    assert traces[3]["y"] == pytest.approx(means, rel=1e-4)
    seen = five().methods[2].runs[0].rotation
    assert plots["rotation-kept"]["data"][2]["y"] == pytest.approx(seen.recognised, rel=1e-4)
    for element in page.all("div", role="img"):
        assert len(element["aria-label"]) > 30


def test_parts_that_are_not_recorded_are_left_out():
    record = comparison(FIVE[:1], seeds=(3,), ood=(), rotated_digit=False, search=False)
    record.methods[0].runs[0].curves.clear()
    shown = Page(render_comparison(record, evaluations(record)))
    ids = [element["id"] for element in shown.all("section")]
    assert ids[:4] == ["over-seeds", "costs", "training", "summary"]
    assert "±" not in section(shown, "over-seeds").replace("mean ± sd", "")
    assert "Each seed" not in section(shown, "over-seeds")


def test_the_page_of_an_evaluation_is_none_of_a_comparison():
    shown = Page(render_page(evaluations_of_five()))
    assert shown.all("section")[0]["id"] == "summary"
    assert not shown.all("section", id="over-seeds") and not shown.all("li", **{"class": "of-part"})


def test_names_are_text_wherever_they_stand():
    record = hostile_comparison()
    method = record.methods[0]
    options = {HOSTILE[0]: HOSTILE[1]}
    runs = [replace(run, options=options, learned=options) for run in method.runs]
    settings = {HOSTILE[0]: HOSTILE[1], "command": HOSTILE[0]}
    record = replace(record, methods=[replace(method, runs=runs), *record.methods[1:]], settings=settings)
    shown = Page(render_comparison(record, evaluations(record, examples=60)))
    assert len(shown.all("script")) == 3 and len(shown.all("style")) == 1
    assert not shown.all("b") + shown.all("i")
    assert all(image["src"].startswith("data:image/png;base64,") for image in shown.all("img"))
    names = [e["text"] for e in shown.all("bdi") if e.get("class") == "name"]
    assert {*HOSTILE[:7]} <= set(names)
    for plot in data_of(shown)["plots"]:
        for trace in plot["data"]:
            assert not re.search(r"<(?!br>)|%\{|\$", trace.get("name", "")), trace["name"]


def test_every_method_needs_its_evaluation():
    with pytest.raises(ValueError, match="`evaluations`"):
        render_comparison(five(), evaluations_of_five()[:4])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All files of a comparison, but for the figures."""
    directory = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "comparison_figures", lambda record: [("overview.svg", b"<svg/>")])
        atomic_write_dir(directory, comparison_files(five(), evaluations_of_five()))
    return directory


def test_files_have_names_that_any_file_system_takes(place):
    names = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    assert names == [
        LEDGER,
        "comparison.json",
        "evaluations/belief_matching_kl_weight_auto.json",
        "evaluations/ensemble_members_5.json",
        "evaluations/label_smoothing_smoothing_0.01.json",
        "evaluations/mc_dropout_layers_last.json",
        "evaluations/softmax.json",
        "figures/overview.svg",
        "report.html",
        "summary.csv",
        "summary.md",
    ]
    assert ComparisonRecord.from_json((place / "comparison.json").read_text("utf-8")) == five()


def test_the_page_is_made_again_from_records_alone_without_torch(place, tmp_path):
    out = tmp_path / "again.html"
    command = ["report", f"{place / 'comparison.json'}", "--out", f"{out}"]
    finished = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; code = main({command})\n"
        "heavy = [name for name in ('torch', 'matplotlib', 'scipy') if sys.modules.get(name)]\n"
        "sys.exit(code or str(heavy or ''))"
    )
    assert finished.stderr.strip() == ""
    assert finished.stdout == f"{out}\n"
    assert out.read_bytes() == (place / "report.html").read_bytes()


def test_a_comparison_without_its_evaluations_is_told_in_one_line(place, tmp_path, capsys):
    text = (place / "comparison.json").read_text("utf-8")
    for name, content, words in (
        ("alone", text, "evaluations/softmax.json: No such file"),
        ("old", text.replace("comparison/1", "comparison/0"), "`schema` must be 'beliefmatch.comparison/1'"),
        ("empty", json.dumps({**json.loads(text), "methods": []}), "must hold a run of every method"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(content, encoding="utf-8")
        assert main(["report", f"{path}", "--out", f"{tmp_path / 'x.html'}"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and words in err
    both = [f"{place / 'comparison.json'}", f"{place / 'evaluations' / 'softmax.json'}"]
    assert main(["report", *both]) == 2
    assert "must be one comparison, one adaptation or only evaluations, got 2" in capsys.readouterr().err
