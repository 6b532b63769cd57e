"""Tables, page and files of an adaptation show the numbers of its record, losses as plainly as wins."""

import re
from statistics import fmean

import pytest
from msgspec.structs import replace

from adaptations import NAMES, QUICK, evaluations, record, with_background
from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import AdaptRecord, BestRecord, RiskThresholdCheck, VerdictRecord
from beliefmatch.experiments.adapted_evaluation import score_adaptation
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.report.adaptation_files import adaptation_files, write_adaptation
from beliefmatch.report.adaptation_page import render_adaptation
from beliefmatch.report.adaptation_rows import choice_series
from beliefmatch.report.adaptation_tables import adaptation_tables
from beliefmatch.report.adaptation_text import adaptation_csv, adaptation_markdown, adaptation_summary
from beliefmatch.report.adaptation_words import findings
from evaluation_records import CIRCUMSTANCES
from golden import assert_golden
from html_page import Page, outline
from rendered import csv_rows, figures_drawn, masked, terminal

KINDS = ("repair", "new", "votes", "batchnorm")
MAIN = ("error", "nll", "ece")


@pytest.fixture(scope="module")
def page():
    return Page(render_adaptation(record(), evaluations()))


def sentences(made, scored=()):
    """The caveats and findings of a record, as in its Markdown."""
    text = adaptation_markdown(made, scored)
    return [line for line in text.splitlines() if line.startswith(("> ", "- "))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_terminal_shows_scores_findings_and_caveats(kind):
    text = terminal(*adaptation_tables(record(kind), evaluations(kind)), width=600)
    assert_golden(f"report/adaptation_{kind}_terminal.txt", masked(text))


def test_summary_and_markdown():
    assert_golden("report/adaptation_summary.txt", masked(adaptation_summary(record("new"))))
    markdown = adaptation_markdown(record("new"), evaluations("new"))
    assert_golden("report/adaptation_markdown.txt", masked(markdown))


def test_the_page():
    made = replace(record(), **CIRCUMSTANCES, notes=["A <note>."])
    text = outline(render_adaptation(made, evaluations()))
    before, rest = re.split(r"\nAll \d+ heads that were tried\n", text)
    about = rest[rest.index("## How it was made") : rest.index("## Summary")]  # then as an evaluation's page
    assert_golden("report/adaptation_page.txt", masked(f"{before}\n{about}"))


THRESHOLD = RiskThresholdCheck(0.05, 0.05, 0.7, 0.8, 0.04, 0.75, 0.02)
SEEN, UNKNOWN, UNSEEN = (VerdictRecord(seen, "A reason.") for seen in (True, None, False))
COPIES = VerdictRecord(None, "Few are copies; only its own head could tell. (0.6% of them are copies.)")
CHANGES = {
    "seen": {"verdict": SEEN, "risk_thresholds": []},
    "unknown": {"verdict": UNKNOWN},
    "not seen": {"verdict": UNSEEN},
    "copies": {"verdict": COPIES},
    "seen, two thresholds": {"verdict": SEEN, "risk_thresholds": [THRESHOLD, THRESHOLD]},
    "threshold": {"risk_thresholds": [THRESHOLD]},
    "threshold that answers everything": {"risk_thresholds": [replace(THRESHOLD, threshold=1 / 3)]},
    "threshold without test examples": {"risk_thresholds": [replace(THRESHOLD, test_coverage=None)]},
    "threshold that answers all test examples": {"risk_thresholds": [replace(THRESHOLD, test_coverage=1.0)]},
    "threshold that answers no test example": {
        "risk_thresholds": [replace(THRESHOLD, test_coverage=0.0, test_risk=None)]
    },
    "no threshold": {"risk_thresholds": [replace(THRESHOLD, threshold=None)]},
    "BatchNorm layers that were restored": {
        "batchnorm": {
            "layers": 1,
            "taken": False,
            "validation_before": {"nll": 0.5},
            "validation_after": {"nll": 0.6},
        }
    },
    "notes": {"notes": ["Taken as the <same> classes."]},
}


def test_sentences_of_changed_records():
    """Only those that the change brings."""
    lines = []
    for kind, names in (("repair", [*CHANGES]), ("new", [*CHANGES][:4])):
        usual = sentences(record(kind))
        for name in names:
            made = replace(record(kind), **CHANGES[name])
            lines += [f"# {kind}: {name}", *(line for line in sentences(made) if line not in usual)]
    assert_golden("report/adaptation_sentences.txt", "\n".join(lines))


@pytest.mark.parametrize("kind", ["repair", "new"])
@pytest.mark.parametrize("verdict", [SEEN, UNKNOWN, UNSEEN], ids=["seen", "unknown", "not seen"])
def test_caveats_are_the_same_in_terminal_summary_and_page(kind, verdict):
    made = replace(record(kind), verdict=verdict)
    caveats = [line.removeprefix("> ") for line in sentences(made) if line.startswith(">")]
    assert any("seen" in line or "rely" in line for line in caveats) == (verdict.seen is not False)
    page = outline(render_adaptation(made, evaluations(kind)))
    for text in (terminal(*adaptation_tables(made)), adaptation_summary(made), page):
        assert all(f"! {line}" in " ".join(text.split()) for line in caveats)


# Differences from other heads


def shifted(evaluation, reference, sides):
    """An evaluation whose metrics are below (-1), like (0) or above (1) those of a reference."""
    scores, draws = {**evaluation.scores}, {}
    for key, side in sides.items():
        scores[key] = Number(reference.scores[key].value + side)
        noise = [0.0 if side else (-1) ** place * 1e-3 for place in range(len(reference.draws.metrics[key]))]
        draws[key] = [value + side + e for value, e in zip(reference.draws.metrics[key], noise, strict=True)]
    return replace(evaluation, scores=scores, draws=replace(reference.draws, metrics=draws))


SOFTMAX = "softmax + temperature"  # the obvious control, as the new head has a temperature too


def with_sides(**sides):
    """The evaluations, those of some lines shifted away from those of the new head."""
    labels, scored = record().row_labels, list(evaluations())
    ours = scored[labels.index(record().new_label)]
    for label, of in {**dict.fromkeys(("untouched", "softmax", SOFTMAX), (0, 0, 0)), **sides}.items():
        place = labels.index(label)
        scored[place] = shifted(scored[place], ours, dict(zip(MAIN, of, strict=True)))
    return scored


@pytest.mark.parametrize("label", ["untouched", "softmax", SOFTMAX])
@pytest.mark.parametrize("sides", [(0, 0, 0), (1, 0, 0), (-1, 0, 1), (-1, -1, -1)])
def test_a_loss_beyond_chance_comes_first(label, sides):
    """The new head loses to softmax, or to the network as it was, in the metrics that are lower there."""
    first, *_ = findings(record(), with_sides(**{label: sides}))
    lost = [name for name, side in zip(("error", "NLL", "ECE"), sides, strict=True) if side < 0]
    assert first.startswith("The new head is worse than") == bool(lost)
    assert re.findall(r"(error|NLL|ECE) \+", first) == lost


def test_a_head_that_has_not_converged_is_marked_and_compared_with_no_other():
    def unfinished(label):
        return replace(
            record(), scored=[replace(one, converged=one.label != label) for one in record().scored]
        )

    first, *others = findings(unfinished(record().label), evaluations())
    assert "not converged" in first
    assert not any(re.search("worse|From", line) for line in others)
    scored, name = with_sides(**{SOFTMAX: (-1, -1, -1)}), "a softmax head with a temperature"
    assert name in findings(record(), scored)[0]
    assert not any(name in line for line in findings(unfinished(SOFTMAX), scored))
    page = outline(render_adaptation(unfinished(SOFTMAX), scored))
    against = page[page.index("against each other one") : page.index("## Scores")]
    assert "\nuntouched |" in against and SOFTMAX not in against
    assert f"{SOFTMAX} (not converged)" in page


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_at_most_six_findings(kind):
    made = replace(record(kind), risk_thresholds=[THRESHOLD] * 3)
    assert len(findings(made, evaluations(kind))) <= 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "belief matching"}, "No other head"),
        ({"excess": 0.01, "standard_error": 0.02}, "may be chance"),
        ({"excess": 0.05, "standard_error": 0.02}, "choose = best"),
        ({"excess": 0.05, "standard_error": None}, "choose = best"),
    ],
)
def test_the_best_head_is_named_and_how_far_the_delivered_one_is_from_it(change, words):
    given = {"label": "softmax", "nll": 0.1234, "excess": 0.0, "standard_error": None, **change}
    made = replace(record(), label="belief matching", best=BestRecord(**given))
    (line,) = (line for line in sentences(made) if "0.1234" in line)
    assert words in line and (given["label"] == "belief matching" or "softmax" in line)


def test_the_network_stays_as_it_was_where_no_head_is_better():
    made = replace(record(), chosen="untouched", label="untouched")
    assert any("stays as it was" in line for line in sentences(made, evaluations()))
    plots = Page(render_adaptation(made, evaluations())).plots()
    assert "choice-nll" in plots


def test_the_network_as_it_was_comes_first_and_without_draws_nothing_is_claimed():
    before, after = record().delivered("untouched").scores, record().delivered(record().label).scores
    error = f"error {100 * before.error:.2f} → {100 * after.error:.2f}"
    nll = f"NLL {before.nll:.4f} → {after.nll:.4f}"
    for scored in (evaluations(), [replace(one, draws=None) for one in evaluations()]):
        (line,) = (line for line in sentences(record(), scored) if "From the network as it was" in line)
        assert error in line and nll in line
        assert bool(re.search("better|worse|indistinguishable", line)) == (scored == evaluations())
    ours = evaluations()[record().row_labels.index(record().label)]
    same = sentences(record(), [replace(ours, draws=None), *evaluations()[1:]])
    assert sum(line.count("(the same)") for line in same) == 3


def test_differences_on_the_page_are_those_of_the_record(page):
    before, after = record().delivered("untouched").scores, record().delivered(record().label).scores
    columns = (("error", 100), ("nll", 1), ("brier", 1), ("ece", 100))
    for (key, scale), cell in zip(columns, page.row(" untouched"), strict=True):
        found = re.match(r"([+−]?[\d.]+)\[([+−]?[\d.]+), ([+−]?[\d.]+)\]", cell["text"])
        value, low, high = (float(part.replace("−", "-")) for part in found.groups())
        wanted = scale * (getattr(after, key) - getattr(before, key))
        assert value == pytest.approx(wanted, abs=0.02) and low <= value <= high


def test_trained_batchnorm_layers_make_another_head_that_is_delivered():
    made = record("batchnorm")
    assert made.new_label == made.row_labels[-1] == "belief matching and BatchNorm"
    (starred,) = (line for line in adaptation_summary(made).splitlines() if line.startswith("*"))
    assert "belief matching and BatchNorm" in starred
    restored = replace(record(), batchnorm={**made.batchnorm, "taken": False})
    assert restored.new_label == record().label


# Numbers


def test_the_page_holds_the_numbers_of_the_record(page):
    for title, key, scale, digits in (("Error", "error", 100, 2), ("Negative log-likelihood", "nll", 1, 4)):
        wanted = [f"{scale * getattr(one.scores, key):.{digits}f}" for one in record().scored]
        assert [cell["text"].strip() for cell in page.row(title)] == wanted


def test_every_lambda_is_drawn_as_a_mean_over_seeds():
    made = record("new")
    plots = Page(render_adaptation(made, evaluations("new"))).plots()
    assert {"choice-nll", "choice-ece", "choice-error", "fitting"} <= set(plots)
    tried = [head for head in made.tried if head.kind == "belief_matching"]
    for key in ("nll", "error"):
        means = [
            fmean(getattr(head, key) for head in tried if head.options["kl_weight"] == weight)
            for weight in (0.01, 0.1)
        ]
        assert plots[f"choice-{key}"]["data"][0]["y"] == pytest.approx(means, rel=1e-4)


@pytest.mark.parametrize("choose", ["belief_matching", "best"])
def test_heads_with_background_and_of_resampled_rows_are_lines_and_no_lambdas(choose):
    made = with_background(choose)
    found, scored = score_adaptation(made, model_name="a", settings=QUICK)
    assert AdaptRecord.from_json(found.to_json()) == found
    assert {"belief matching with background", "softmax with outlier exposure"} <= {*found.row_labels}
    assert "belief matching with background, 3 heads" in found.row_labels
    (series,) = (one for one in choice_series(found) if one.label == "belief matching")
    assert [len(point.nll) for point in series.points] == [1, 1]
    assert found.label in render_adaptation(found, scored)
    assert len(findings(found, scored)) <= 6


def test_heads_that_were_tried_are_listed_the_best_first():
    lines = outline(render_adaptation(record(), evaluations())).splitlines()
    first = lines.index("head | NLL | error % | ECE % | iterations | notes") + 1
    tried = [line.split(" | ") for line in lines[first : first + len(record().tried)]]
    assert {name.removesuffix(" — chosen") for name, *_ in tried} == {head.name for head in record().tried}
    nlls = [float(nll) for _, nll, *_ in tried]
    assert nlls == sorted(nlls)


def test_the_csv_is_exact():
    lines = csv_rows(adaptation_csv(record()))
    for one in record().scored:
        where = {"name": one.name, "part": "test", "metric": "nll"}
        (found,) = (line for line in lines if where.items() <= line.items())
        assert float(found["value"]) == one.scores.nll
    assert sum(line["part"] == "tried" for line in lines) == 3 * len(record().tried)


def test_votes_have_a_row_of_their_own():
    made = record("votes")
    cells = Page(render_adaptation(made, evaluations("votes"))).row("KL")
    assert [cell["text"].strip() for cell in cells] == [f"{one.kl:.4f}" for one in made.scored]


# Names and files


def test_names_are_data():
    text = render_adaptation(record(), evaluations())
    assert NAMES[2] not in text and "a <network>" not in text
    tables = [block for block in adaptation_markdown(record()).split("\n\n") if block.startswith("|")]
    assert r"\|pipes\| &amp; more" in "".join(tables)
    for table in tables:
        assert len({line.replace(r"\|", "").count("|") for line in table.splitlines()}) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with all files of an adaptation."""
    directory = tmp_path_factory.mktemp("run")
    with figures_drawn():
        page = write_adaptation(directory, record(), evaluations(), head=b"weights")
    assert page == directory / "report.html" and (directory / "head.safetensors").read_bytes() == b"weights"
    return directory


def test_the_page_is_made_again_from_the_records(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for given, out in ((run, "again.html"), (run / "record.json", "again.html"), (run, None)):
        assert main(["report", f"{given}", *(["--out", out] if out else [])]) == 0
        made = tmp_path / (out or "report.html")  # the current directory is where it goes by default
        assert capsys.readouterr().out == f"{made.name}\n"
        assert made.read_bytes() == (run / "report.html").read_bytes()


def test_a_directory_without_its_evaluations_is_refused(run, tmp_path, capsys):
    (tmp_path / "record.json").write_bytes((run / "record.json").read_bytes())
    assert main(["report", f"{tmp_path}"]) == 2
    assert "evaluations/untouched.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: adaptation_files(record(), evaluations()[:1]), "evaluations"),
        (lambda: render_adaptation(replace(record(), scored=record().scored[:1]), evaluations()), "record"),
    ],
    ids=["evaluations", "record"],
)
def test_incomplete_records_are_refused(call, argument):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        call()
