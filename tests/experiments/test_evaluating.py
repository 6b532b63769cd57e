"""`beliefmatch.evaluate`: predictions in memory, the object it returns, and the command on top of it."""

import json
import re
import sys
from html.parser import HTMLParser

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch
from msgspec.structs import replace
from scipy.special import softmax
from sklearn.metrics import log_loss, roc_auc_score
from torchmetrics.functional.classification import multiclass_calibration_error

from beliefmatch import Belief, Evaluation, evaluate
from beliefmatch.cli import main
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from commands import files_below, python
from refusals import refusal

N, K = 160, 4
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
LOGITS = RNG.normal(size=(N, K)) + 1.5 * np.eye(K)[TARGETS]
PROBS = softmax(LOGITS, 1)
OOD = RNG.normal(size=(50, K))
NAMES = ["cat", "dog", "<owl>", "elk & co"]


@pytest.fixture(scope="module", name="pair")
def _pair() -> Evaluation:
    """A model and the same one three times as confident, with one OOD set."""
    return evaluate(
        logits={"plain": LOGITS, "too sure": 3 * LOGITS},
        targets=TARGETS,
        ood={"noise": {"plain": OOD, "too sure": 3 * OOD}},
        class_names=NAMES,
        resamples=1000,
    )


def alone(**given) -> Evaluation:
    return evaluate(**{"targets": TARGETS, "resamples": 0, **given})


def comparable(record: EvaluationRecord) -> EvaluationRecord:
    """Without what depends on the time and on where the predictions are from."""
    settings = {key: one for key, one in record.settings.items() if "fields" not in key}
    ood = [
        replace(one, source="", detections=[replace(d, auroc_differences=[]) for d in one.detections])
        for one in record.ood
    ]
    wrong = [replace(one, auroc_differences=[]) for one in record.misclassification]
    bare = {"source": "", "created": "", "wall_seconds": 0.0, "hardware": {}, "settings": settings}
    return replace(record, **bare, ood=ood, misclassification=wrong)


# Numbers


def test_the_numbers_are_those_of_other_libraries():
    found = alone(logits=LOGITS, ood={"noise": OOD})
    assert found.error == pytest.approx((LOGITS.argmax(1) != TARGETS).mean())
    assert found.nll == pytest.approx(log_loss(TARGETS, PROBS))
    assert found.brier == pytest.approx(np.square(PROBS - np.eye(K)[TARGETS]).sum(1).mean())
    ece = multiclass_calibration_error(torch.tensor(PROBS), torch.tensor(TARGETS), num_classes=K, n_bins=15)
    assert found.ece == pytest.approx(ece.item(), rel=1e-6)
    scores = [-PROBS.max(1), -softmax(OOD, 1).max(1)]
    expected = roc_auc_score([0] * N + [1] * len(OOD), np.concatenate(scores))
    assert found.auroc["noise"]["confidence"] == pytest.approx(expected)
    assert found.scores["model"]["noise/confidence/auroc"] == found.auroc["noise"]["confidence"]
    assert found.scores["model"]["ece"] == found.ece == found.numbers["ece"].value


def test_the_command_makes_the_same_records(pair, tmp_path, capsys):
    for name, factor in (("plain", 1), ("too sure", 3)):
        np.savez(tmp_path / f"{name}.npz", logits=factor * LOGITS, targets=TARGETS)
        np.savez(tmp_path / f"{name} noise.npz", logits=factor * OOD)
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    files = [f"{tmp_path / name}.npz" for name in pair]
    ood = "noise=" + ",".join(f"{tmp_path / name} noise.npz" for name in pair)
    options = ["--ood", ood, "--class-names", f"{tmp_path / 'names.txt'}", "--resamples", "1000"]
    assert main(["evaluate", *files, *options, "--out", f"{tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    by_command = Evaluation.load(*(tmp_path / "out" / f"{name}.json" for name in ("plain", "too_sure")))
    assert list(map(comparable, by_command.records)) == list(map(comparable, pair.records))
    assert " ".join(pair.verdict.split()) in " ".join(printed.replace("•", "").split())


def test_models_in_memory_are_compared_pair_by_pair(pair):
    difference = pair.records[0].ood[0].detections[0].auroc_differences
    assert len(difference) == 1 and difference[0].difference.low is not None
    assert len({record.source for record in pair.records}) == 2
    assert "Paired bootstrap difference from the best" in [table.title for table in pair.tables()]


@pytest.mark.parametrize(
    "logits",
    [
        torch.tensor(LOGITS),
        torch.tensor(LOGITS, requires_grad=True),
        torch.tensor(LOGITS.T).T,
        LOGITS.tolist(),
        LOGITS[::-1][::-1],
        LOGITS.astype(">f8"),
        LOGITS.astype(np.longdouble),
        pd.DataFrame(LOGITS, columns=NAMES),
        Belief(torch.tensor(LOGITS)),
        Belief(torch.tensor(LOGITS.T), dim=0),
        {"model": LOGITS},
    ],
)
def test_every_kind_of_array_gives_the_same_evaluation(logits):
    assert comparable(alone(logits=logits).record) == comparable(alone(logits=LOGITS).record)


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor(TARGETS),
        TARGETS.tolist(),
        TARGETS.astype(float),
        TARGETS.astype(np.uint8),
        TARGETS[:, None],
        pd.Series(TARGETS),
        pd.Series([NAMES[one] for one in TARGETS]),
        np.array([NAMES[one] for one in TARGETS]),
    ],
)
def test_targets_are_ids_or_names_of_any_kind(targets):
    found = alone(logits=LOGITS, targets=targets, class_names=NAMES)
    assert found.error == pytest.approx((LOGITS.argmax(1) != TARGETS).mean())


def test_some_models_may_have_logits_and_others_probabilities():
    found = evaluate(
        logits={"a": LOGITS},
        probs={"b": PROBS},
        targets=TARGETS,
        ood={"noise": {"a": OOD, "b": softmax(OOD, 1)}},
        resamples=0,
    )
    assert [record.kind for record in found.records] == ["logits", "probs"]
    assert found["a"].nll == pytest.approx(found["b"].nll)
    assert found["a"].auroc["noise"]["entropy"] == pytest.approx(found["b"].auroc["noise"]["entropy"])
    assert set(found["b"].auroc["noise"]) < set(found["a"].auroc["noise"])


def test_a_number_that_does_not_exist_is_nan_and_an_infinite_one_is_infinite():
    found = alone(probs=np.eye(K)[(TARGETS + 1) % K])
    assert found.nll == np.inf and found.numbers["nll"].is_infinite
    assert np.isnan(found.scores["model"]["top_k_error"])
    content = json.loads(found.record.to_json())
    assert Evaluation([EvaluationRecord.from_json(json.dumps(content))]).nll == np.inf
    del content["scores"]["nll"]["is_infinite"]
    content["scores"]["nll"]["why"] = ""
    content["schema"] = "beliefmatch.evaluation/4"
    older = Evaluation([EvaluationRecord.from_json(json.dumps(content))])
    assert older.nll == np.inf and np.isnan(older.scores["model"]["top_k_error"])


def test_options_reach_the_evaluation_and_progress_ends_at_one():
    steps = []
    found = alone(
        logits=LOGITS,
        ood={"noise": OOD},
        n_bins=7,
        risks=[0.2],
        shown=3,
        images=RNG.random((N, 5, 5)),
        name="net",
        on_progress=lambda fraction, what: steps.append((fraction, what)),
    )
    record = found.record
    assert found.names == ["net"] and len(record.reliability.count) == 7
    assert [one.risk for one in record.risk_thresholds] == [0.2]
    assert len(record.mistakes) == 3 and record.mistakes[0].image
    fractions = [fraction for fraction, _ in steps]
    assert (
        fractions == sorted(fractions) and fractions[-1] == 1 and "net: noise" in dict(map(reversed, steps))
    )


# The object


def test_one_model_is_chosen_by_its_name(pair):
    assert len(pair) == 2 and list(pair) == pair.names == ["plain", "too sure"]
    assert pair["plain"].names == ["plain"] and pair["plain"].ece < pair["too sure"].ece
    assert set(pair.scores) == set(pair) and pair.scores["plain"]["ece"] == pair["plain"].ece
    with pytest.raises(KeyError, match="plain"):
        pair["plian"]
    with pytest.raises(AttributeError, match="plain, too sure"):
        _ = pair.ece


def test_it_prints_the_verdict_first_and_then_the_table(pair):
    text = f"{pair}"
    verdict = " ".join(pair.verdict.split())
    assert " ".join(text.split()).startswith(verdict)
    assert text.endswith(f"{pair.table()}") and "too sure" in text and "ECE" in text
    assert max(map(len, text.splitlines())) <= 110


def test_it_prints_without_the_extra_of_reports():
    script = """
import sys
sys.modules["rich"] = sys.modules["matplotlib"] = sys.modules["jinja2"] = None
import beliefmatch
found = beliefmatch.evaluate(probs=[[0.9, 0.1], [0.6, 0.4]], targets=[0, 1], resamples=0)
print(found)
for needed in (found.table, found.plot, found._repr_html_, lambda: found.report("x.html")):
    try:
        needed()
    except ModuleNotFoundError as error:
        assert "beliefmatch[report]" in str(error), error
    else:
        raise AssertionError(needed)
"""
    finished = python(script)
    assert finished.stderr == "" and finished.stdout == "Evaluation(model: error 50.00 %)\n"


def test_every_figure_is_drawn_by_its_name(pair, tmp_path):
    figure = pair.plot()
    assert isinstance(figure, matplotlib.figure.Figure) and len(figure.axes) >= 3
    assert figure._repr_png_().startswith(b"\x89PNG")
    for name in pair.figures:
        pair.plot(name).savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    with pytest.raises(ValueError, match=r"`figure`.*did you mean reliability"):
        pair.plot("reliabilty")


@pytest.mark.parametrize("factors", [{"plain": 1}, {"plain": 1, "too sure": 3}])
def test_panels_of_an_evaluation_without_ood_sets_are_equally_wide(factors):
    drawn = alone(logits={name: factor * LOGITS for name, factor in factors.items()}).plot()
    reliability, shares, risk = (axes.get_position() for axes in drawn.axes)
    assert reliability.width == pytest.approx(risk.width, rel=0.1) and risk.width > 0.3
    assert (reliability.x0, reliability.x1) == pytest.approx((shares.x0, shares.x1))


def test_a_report_is_a_page_or_a_directory_that_loads_again(pair, tmp_path):
    page = pair.report(tmp_path / "new" / "page.html")
    assert page == tmp_path / "new" / "page.html" and files_below(page.parent) == ["page.html"]
    in_directory = pair.report(tmp_path / "all")
    assert in_directory.read_bytes() == page.read_bytes()
    written = files_below(tmp_path / "all")
    assert {"plain.json", "too_sure.json", "summary.csv"} <= set(written)
    again = Evaluation.load(tmp_path / "all" / "plain.json", tmp_path / "all" / "too_sure.json")
    assert again.records == pair.records and f"{again}" == f"{pair}"


@pytest.mark.parametrize("name", ["page.pdf", "page.MD", "page.json"])
def test_a_report_in_another_format_is_refused_before_anything_is_written(pair, tmp_path, name):
    with pytest.raises(ValueError, match=r"`path` must end in \.html or be a directory"):
        pair.report(tmp_path / name)
    assert not files_below(tmp_path)


class Elements(HTMLParser):
    """Ids of elements, and what refers to one."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids, self.tags = [], []
        self.feed(html)
        self.references = set(re.findall(r"(?:url\(|href=\")#([\w-]+)", html))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]


def test_a_notebook_shows_verdict_table_and_pictures_and_nothing_of_the_user_runs(pair):
    html = pair._repr_html_()
    elements = Elements(html)
    assert elements.tags.count("table") == 1 and elements.tags.count("svg") >= 3
    assert "script" not in elements.tags and "iframe" not in elements.tags
    assert pair.verdict.split(";")[0] in html
    hostile = alone(logits={"<script>alert(1)</script>": LOGITS}, class_names=NAMES)
    assert "<script>" not in hostile._repr_html_()


def test_the_pictures_of_two_evaluations_in_one_notebook_do_not_refer_to_each_other(pair):
    first, second = (Elements(one._repr_html_()) for one in (pair, pair["plain"]))
    assert first.ids and not set(first.ids) & set(second.ids)
    for one in (first, second):
        assert one.references <= set(one.ids)


# Bad input


@pytest.mark.parametrize(
    ("given", "kind", "named"),
    [
        ({}, ValueError, "logits"),
        ({"logits": LOGITS, "probs": PROBS}, ValueError, "logits"),
        ({"logits": {}}, ValueError, "logits"),
        ({"logits": {1: LOGITS}}, ValueError, "logits"),
        ({"logits": {"a": LOGITS}, "probs": {"a": PROBS}}, ValueError, "probs"),
        ({"logits": LOGITS[:, 0]}, ValueError, "logits` .*-z/2, z/2"),
        ({"probs": PROBS[:, 0]}, ValueError, "probs` .*1 - p, p"),
        ({"probs": LOGITS}, ValueError, "probs"),
        ({"logits": {"a": LOGITS, "b": LOGITS * np.nan}}, ValueError, r"logits\['b'\]` .*row 0"),
        ({"logits": [[1, 2], [3]]}, ValueError, "logits"),
        ({"logits": object()}, ValueError, "logits"),
        ({"logits": "logits.npy"}, ValueError, "logits"),
        ({"logits": LOGITS + 1j}, ValueError, "logits"),
        ({"logits": LOGITS[:0], "targets": TARGETS[:0]}, ValueError, "logits"),
        ({"logits": torch.tensor(LOGITS).to_sparse()}, ValueError, "logits"),
        ({"logits": torch.zeros(N, K, device="meta")}, ValueError, "logits"),
        ({"logits": np.ma.array(LOGITS, mask=LOGITS > 0)}, ValueError, "logits` .*mask"),
        ({"logits": LOGITS, "targets": np.ma.array(TARGETS)}, ValueError, "targets` .*mask"),
        ({"logits": LOGITS, "targets": None}, ValueError, "targets"),
        ({"logits": LOGITS, "targets": TARGETS[1:]}, ValueError, "targets"),
        ({"logits": LOGITS, "targets": TARGETS + 1}, ValueError, "targets"),
        ({"logits": LOGITS, "targets": TARGETS + 0.5}, ValueError, "targets"),
        ({"logits": LOGITS, "targets": PROBS}, ValueError, "targets"),
        ({"logits": LOGITS, "targets": ["cat"] * N}, ValueError, "targets"),
        ({"logits": LOGITS, "ood": OOD}, TypeError, "ood"),
        ({"logits": LOGITS, "ood": {"": OOD}}, ValueError, "ood"),
        ({"logits": LOGITS, "ood": {"misclassification": OOD}}, ValueError, "ood"),
        ({"logits": LOGITS, "ood": {"noise": np.nan * OOD}}, ValueError, r"ood\['noise'\]"),
        ({"logits": {"a": LOGITS, "b": LOGITS}, "ood": {"x": OOD}}, ValueError, r"ood\['x'\]"),
        ({"logits": {"a": LOGITS, "b": LOGITS}, "ood": {"x": {"a": OOD}}}, ValueError, r"ood\['x'\]"),
        ({"logits": LOGITS, "class_names": "abcd"}, TypeError, "class_names"),
        ({"logits": LOGITS, "class_names": ["a", "b"]}, ValueError, "class_names"),
        ({"logits": LOGITS, "class_names": ["a", "b", "c", "a"]}, ValueError, "class_names"),
        ({"logits": LOGITS, "images": np.zeros((N, 3))}, ValueError, "images"),
        ({"logits": LOGITS, "n_bins": 10**11}, ValueError, "n_bins"),
        ({"logits": LOGITS, "resamples": 10**9}, ValueError, "resamples"),
        ({"logits": LOGITS, "resamples": 5}, ValueError, "resamples"),
        ({"logits": LOGITS, "level": 95}, ValueError, "level"),
        ({"logits": LOGITS, "risks": 0.1}, ValueError, "risks"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(given, kind, named):
    with pytest.raises(kind, match=f"^evaluate: `{named}") as caught:
        alone(**given)
    assert "\n" not in f"{caught.value}"


@pytest.mark.parametrize(
    ("logits", "ood", "named"),
    [({"a": LOGITS, "b": LOGITS[:, :3]}, None, "model 'b'"), (LOGITS, {"x": OOD[:, :3]}, "OOD set 'x'")],
)
def test_other_numbers_of_classes_are_refused(logits, ood, named):
    with pytest.raises(ValueError, match=f"^evaluate: {named} must have the 4 classes"):
        alone(logits=logits, ood=ood, targets=TARGETS % 3)


@pytest.mark.parametrize("odd", [LOGITS[:, :2], LOGITS[:5], Belief(torch.tensor(LOGITS[:, :2]))])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_model_whose_shape_does_not_fit_the_targets_is_named(odd, order):
    logits = {name: {"a": LOGITS, "b": odd}[name] for name in order}
    with pytest.raises(ValueError, match=r"^evaluate: `logits\['b'\]` must have the shape .* of 'a'"):
        alone(logits=logits)


def test_targets_that_fit_no_model_are_named():
    with pytest.raises(ValueError, match=r"^evaluate: `targets`"):
        alone(logits={"a": LOGITS, "b": LOGITS[:, :3]}, targets=TARGETS + K)


@pytest.mark.parametrize("path", [None, 3])
def test_a_path_of_a_report_that_is_no_path_is_named(pair, path):
    with pytest.raises(TypeError, match=r"^report: `path`"):
        pair.report(path)


@pytest.mark.parametrize(
    ("path", "options", "named"),
    [
        ("", {}, "path"),
        ("page.html", {"figures": ["svg"]}, "figures"),
        ("out", {"figures": ["gif"]}, "figures"),
        ("out", {"figures": "gif"}, "figures"),
    ],
)
def test_a_report_that_cannot_be_written_leaves_nothing(pair, path, options, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^report: `{named}`"):
        pair.report(path, **options)
    assert not files_below(tmp_path)


def test_one_format_of_figures_is_a_list_of_one(pair, tmp_path):
    pair.report(tmp_path / "one", figures="svg")
    pair.report(tmp_path / "list", figures=["svg"])
    written = files_below(tmp_path / "one")
    assert written == files_below(tmp_path / "list") and any(name.endswith(".svg") for name in written)
    assert [name for name, _ in pair.files(figures="svg")] == [
        name for name, _ in pair.files(figures=["svg"])
    ]
    with pytest.raises(TypeError, match=r"^report: `figures`"):
        pair.report(tmp_path / "three", figures=3)


def test_records_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    for path in (tmp_path / "a.json", tmp_path / "none.json"):
        with pytest.raises(ValueError, match=f"^Evaluation.load: `paths` .*{path.name}"):
            Evaluation.load(path)
    with pytest.raises(ValueError, match="`records`"):
        Evaluation.load()


def test_probabilities_that_are_given_as_logits_are_warned_of_by_the_name_of_the_model():
    found = evaluate(logits={"good": LOGITS, "bad": PROBS}, targets=TARGETS, resamples=0)
    (warning,) = found.warnings
    assert "logits of bad " in warning and "probs" in warning
    assert evaluate(probs=PROBS, targets=TARGETS, resamples=0).warnings == []


def test_headings_of_a_frame_name_the_classes_as_those_of_a_file_do(tmp_path):
    names = ["cat", "dog", "owl", "elk"]
    for headings, targets in (
        (names, [names[one] for one in TARGETS]),
        ([f"prob_{name}" for name in names], TARGETS),
        ([f"{name} prob" for name in names], TARGETS),
    ):
        frame = pd.DataFrame(PROBS, columns=headings)
        found = evaluate(probs=frame, targets=targets, resamples=0)
        frame.assign(label=targets).to_csv(tmp_path / "a.csv", index=False)
        of_file = read_predictions(tmp_path / "a.csv")
        assert found.record.class_names == names == list(of_file.class_names)
        assert found.nll == evaluate(probs=PROBS, targets=TARGETS, resamples=0).nll
    for headings in (["a", "b", "c", "d"], [f"prob_{one}" for one in range(4)], range(4)):
        frame = pd.DataFrame(PROBS, columns=headings)
        assert evaluate(probs=frame, targets=TARGETS, resamples=0).record.class_names == list("0123")


def test_columns_of_a_frame_are_put_in_the_order_of_the_given_classes():
    names = ["cat", "dog", "owl", "elk"]
    frame = pd.DataFrame(PROBS, columns=names)[names[::-1]]
    expected = evaluate(probs=PROBS, targets=TARGETS, resamples=0).nll
    for headed in (frame, frame.add_prefix("prob_")):
        assert evaluate(probs=headed, targets=TARGETS, class_names=names, resamples=0).nll == expected
    with pytest.raises(ValueError, match="`class_names` must be the classes of the columns, elk"):
        evaluate(probs=frame.add_prefix("prob_"), targets=TARGETS, class_names=[*names[:3], "cow"])


def as_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


@pytest.mark.parametrize("frame_of", [pd.DataFrame, as_polars])
@pytest.mark.parametrize("headings", ["prob_{}", "Probs{}", "y_proba.{}", "{}"])
@pytest.mark.parametrize("names", [None, ["cat", "dog", "owl", "elk"], ["p", "0", "q", "r"]])
def test_numbered_columns_of_a_frame_are_read_by_their_numbers_as_those_of_a_file(headings, frame_of, names):
    order = [2, 0, 3, 1]
    frame = frame_of(pd.DataFrame(PROBS[:, order], columns=[headings.format(k) for k in order]))
    found = Predictions.from_arrays(probs=frame, targets=TARGETS, class_names=names)
    assert np.array_equal(found.values, PROBS)


@pytest.mark.parametrize("kind", [int, np.int8, float, str])
def test_headings_that_are_class_ids_of_any_type_are_read_by_their_numbers(kind):
    frame = pd.DataFrame(PROBS[:, ::-1], columns=[kind(k) for k in (3, 2, 1, 0)])
    found = evaluate(probs=frame, targets=TARGETS, resamples=0)
    assert found.error == evaluate(probs=PROBS, targets=TARGETS, resamples=0).error
    two = np.stack([PROBS[:, 0], 1 - PROBS[:, 0]], 1)
    of_truth = pd.DataFrame(two[:, ::-1], columns=[True, False])
    assert np.array_equal(Predictions.from_arrays(probs=of_truth).values, two)


def test_numbers_that_are_class_names_are_names():
    names = ["3", "0", "2", "1"]
    for headings in (names, [3, 0, 2, 1]):
        frame = pd.DataFrame(PROBS, columns=headings).iloc[:, ::-1]
        found = Predictions.from_arrays(probs=frame, targets=TARGETS, class_names=names)
        assert np.array_equal(found.values, PROBS)
    texts = np.array(names)[TARGETS]
    found = Predictions.from_arrays(probs=pd.DataFrame(PROBS, columns=[3, 0, 2, 1]), targets=texts)
    assert found.class_names == tuple(names) and found.targets.tolist() == TARGETS.tolist()


@pytest.mark.parametrize(
    "headings",
    [[0, 1, 2, 4], [1, 2, 3, 4], [0, 1, 1, 2], [-1, 1, 2, 3], ["prob_0", "prob_1", "prob_2", "prob_4"]],
)
def test_a_gap_among_the_numbers_of_a_frame_is_an_error(headings):
    message = refusal(evaluate, probs=pd.DataFrame(PROBS, columns=headings), targets=TARGETS, resamples=0)
    assert message.startswith("evaluate: `probs` ") and "counted from 0" in message


@pytest.mark.parametrize("cell", ["n/a", "0.25", [0.25], pd.NA])
def test_a_cell_of_a_frame_that_is_no_number_is_named_by_row_and_column(cell):
    frame = pd.DataFrame(PROBS, columns=NAMES)
    frame["dog"] = [*PROBS[:3, 1], cell, cell, *PROBS[5:, 1]]
    frame["dog"] = frame["dog"].astype(object)
    message = refusal(evaluate, probs=frame, targets=TARGETS, resamples=0)
    assert message.startswith("evaluate: `probs` ") and f"{cell!r} in row 3 of column 'dog'" in message


def test_a_frame_of_numbers_as_objects_is_one_of_numbers():
    frame = pd.DataFrame(PROBS, columns=NAMES).astype(object)
    assert np.array_equal(Predictions.from_arrays(probs=frame).values, PROBS)
    message = refusal(Predictions.from_arrays, probs=[[0.5, 0.5], [0.25, "0.75"], [1.0, 0.0]])
    assert "'0.75' in row 1 of column 1" in message


def test_columns_beside_numbered_ones_are_left_out_as_those_of_a_file():
    frame = pd.DataFrame(LOGITS, columns=[f"logit_{k}" for k in range(K)]).iloc[:, ::-1]
    found = Predictions.from_arrays(logits=frame.assign(age=TARGETS + 30.0), targets=TARGETS)
    assert np.array_equal(found.values, LOGITS)


def test_predictions_are_made_from_arrays_with_the_checks_of_files():
    found = Predictions.from_arrays(logits=LOGITS, targets=TARGETS, class_names=NAMES)
    assert found.path is None and found.kind == "logits" and found.class_names == tuple(NAMES)
    assert torch.equal(found.values, torch.tensor(LOGITS)) and found.targets.tolist() == TARGETS.tolist()
    assert Predictions.from_arrays(probs=PROBS).targets is None
    with pytest.raises(ValueError, match=r"^Predictions: `logits`"):
        Predictions.from_arrays(targets=TARGETS)
