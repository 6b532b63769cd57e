"""Tables, figures and page of an adaptation show the numbers of its record, losses as plainly as wins."""

import csv
import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from adaptations import NAMES, evaluations, record
from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import RiskThresholdCheck, VerdictRecord
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.report import adaptation_figures as figures
from beliefmatch.report.adaptation_caveats import caveats
from beliefmatch.report.adaptation_files import adaptation_files, write_adaptation
from beliefmatch.report.adaptation_page import render_adaptation
from beliefmatch.report.adaptation_rows import choice_series, line_titles, reference_lines, score_rows
from beliefmatch.report.adaptation_tables import adaptation_tables
from beliefmatch.report.adaptation_text import adaptation_csv, adaptation_markdown, adaptation_summary
from beliefmatch.report.adaptation_words import Against, Change, _rival, against, findings
from html_page import Page, data_of, row


def change(low, high, *, key="nll", other=0.5, ours=0.4):
    return Change(key, other, ours, Number((low + high) / 2, low, high))


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.2, -0.1, "better"), (0.1, 0.2, "worse"), (-0.1, 0.1, "even")]
)
def test_a_verdict_is_by_the_interval_of_the_difference(low, high, verdict):
    assert change(low, high).verdict == verdict


def test_without_draws_nothing_is_claimed():
    assert Change("nll", 0.5, 0.4, Number(None)).verdict == ""
    assert Change("nll", 0.5, 0.5, Number(None)).verdict == "even"


def test_differences_are_those_of_the_record():
    (first, *_) = against(record(), evaluations())
    assert first.label == "untouched"
    before, after = record().delivered("untouched"), record().delivered("belief matching")
    for one in first.changes:
        wanted = getattr(after.scores, one.key) - getattr(before.scores, one.key)
        assert one.difference.value == pytest.approx(wanted, abs=1e-4)
        assert one.difference.low <= one.difference.value <= one.difference.high


def test_words_begin_with_what_changed_and_name_every_rival():
    done, changed, *others = findings(record(), evaluations())
    before, after = record().delivered("untouched").scores, record().delivered("belief matching").scores
    assert "a <network>" in done and "fitted anew" in done
    assert f"error {100 * before.error:.2f} → {100 * after.error:.2f}" in changed
    assert f"NLL {before.nll:.4f} → {after.nll:.4f}" in changed
    for title in line_titles(record())[1:-1]:
        assert any(sentence.lower().startswith(title.lower()) for sentence in others)


def test_a_rival_that_does_better_is_said_to():
    softmax = record("new").row_labels.index("softmax")
    ours, best = evaluations("new")[-1], evaluations("new")[softmax]
    worse = {key: [value + 1 for value in best.draws.metrics[key]] for key in best.draws.metrics}
    scores = {key: Number(number.value + 1) for key, number in best.scores.items() if key in worse}
    beaten = replace(ours, scores={**ours.scores, **scores}, draws=replace(best.draws, metrics=worse))
    found = [*evaluations("new")[:-1]]
    sentences = findings(record("new"), [*found, beaten])
    assert "Against a softmax head fitted to the same features" in sentences[1]
    assert sentences[1].count("(worse, +") == 3
    smoothing = next(one for one in sentences if one.startswith("Label smoothing"))
    assert "is as good or better here: better than belief matching in error, NLL and ECE" in smoothing


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([0, 0, 0], "Other is indistinguishable from ours in error, NLL and ECE."),
        ([1, 0, 0], "is as good or better here: better than ours in error and indistinguishable"),
        ([1, 0, -1], "Other is better than ours in error, indistinguishable from it in NLL and worse in"),
    ],
)
def test_as_good_or_better_is_said_only_of_what_is_better_somewhere(spans, said):
    pairs = zip(("error", "nll", "ece"), spans, strict=True)
    changes = [change(side - 0.5, side + 0.5, key=key) for key, side in pairs]
    assert said in _rival(Against("other", "other", changes), "ours")


def test_with_trained_layers_what_is_delivered_is_the_new_head():
    made, scored = record("batchnorm"), evaluations("batchnorm")
    assert made.new_label == made.row_labels[-1] == "belief matching and BatchNorm"
    (starred,) = (line for line in adaptation_summary(made).splitlines() if line.startswith("*"))
    assert "belief matching and BatchNorm" in starred
    console = Console(width=160, file=io.StringIO(), highlight=False)
    console.print(*adaptation_tables(made, scored), crop=False)
    arrows = [line for line in console.file.getvalue().splitlines() if "→ belief" in line]
    assert len(arrows) == 2 and all("→ belief matching and BatchNorm" in line for line in arrows)
    done, changed, *others = findings(made, scored)
    before, after = (made.delivered(label).scores.nll for label in ("untouched", made.new_label))
    assert "2 BatchNorm layers trained together with the head" in done
    assert f"NLL {before:.4f} → {after:.4f}" in changed
    assert any(
        one.startswith("Belief matching (λ") and " belief matching and BatchNorm in " in one for one in others
    )
    assert "belief matching" in [one.label for one in against(made, scored)]
    page = render_adaptation(made, scored)
    assert "belief matching and BatchNorm less …" in page
    (_, drawn) = figures._before_and_after(made, scored)
    assert drawn.name == made.new_label


def test_layers_that_were_not_taken_are_told():
    kept = replace(record(), batchnorm={**record("batchnorm").batchnorm, "layers": 1, "taken": False})
    assert kept.new_label == "belief matching"
    assert "Training 1 BatchNorm layer with the head did not improve" in findings(kept)[0]


def test_validation_data_that_chose_are_called_so_everywhere():
    words = "these numbers are of the validation examples that chose λ"
    made = record("new")
    assert any(words in one for one in caveats(made)) and not any(words in one for one in caveats(record()))
    page = render_adaptation(made, evaluations("new"))
    for text in (page, adaptation_markdown(made), " ".join(adaptation_summary(made).split())):
        assert words in text


def shown_everywhere(made, kind):
    """What terminal, summary and page say, spaces and line ends aside."""
    console = Console(width=120, file=io.StringIO(), highlight=False)
    console.print(*adaptation_tables(made, evaluations(kind)), crop=False)
    page = " ".join(Page(render_adaptation(made, evaluations(kind))).all("main")[0]["text"].split())
    return [" ".join(text.split()) for text in (console.file.getvalue(), adaptation_summary(made), page)]


@pytest.mark.parametrize(
    ("kind", "seen", "words"),
    [
        ("repair", None, "! It is unknown whether the network has seen the validation examples: too few."),
        ("new", None, "! It is unknown whether the network has seen the validation examples: it has no head"),
        (
            "repair",
            True,
            "! Do not rely on the choice and the risk thresholds: λ was chosen on examples that the",
        ),
        ("new", True, "! Do not rely on any of these numbers: λ was chosen on examples that the heads have"),
    ],
)
def test_validation_data_that_may_have_been_seen_are_warned_of(kind, seen, words):
    made = replace(record(kind), verdict=VerdictRecord(seen, "Too few."))
    for text in shown_everywhere(made, kind):
        assert words in text


def test_validation_data_that_were_not_seen_need_no_warning():
    clear = replace(record(), verdict=VerdictRecord(False, "The head is less sure of them."))
    assert not any("seen" in one or "rely" in one for one in caveats(clear))
    assert "i The head is less sure of them." in adaptation_summary(clear)


def test_a_share_of_copies_stays_in_the_short_words():
    copies = VerdictRecord(None, "Few are copies; only its own head could tell. (0.6% of them are copies.)")
    said = caveats(replace(record("new"), verdict=copies))[0]
    assert said.endswith("validation examples: it has no head for these classes. (0.6% of them are copies.)")


THRESHOLD = RiskThresholdCheck(0.05, 0.05, 0.7, 0.8, 0.04, 0.75, 0.02)


@pytest.mark.parametrize(
    ("threshold", "said"),
    [
        (THRESHOLD, "Answering at a confidence of 0.7000 or more keeps the error below 5 %"),
        (
            THRESHOLD,
            "(with probability 95 %): 75.00 % of the test examples are answered, 2.00 % of them wrongly.",
        ),
        (replace(THRESHOLD, threshold=0.0, test_coverage=1.0), "Everything can be answered, and the error"),
        (replace(THRESHOLD, threshold=1 / 3, test_coverage=1.0), ": all of the test examples are answered,"),
        (replace(THRESHOLD, test_coverage=None), ": 80.0 % of the validation examples are answered."),
        (replace(THRESHOLD, test_coverage=0.0, test_risk=None), "none of the test examples are answered."),
        (replace(THRESHOLD, threshold=None), "threshold keeps the error among its answers below 5 %"),
    ],
)
def test_a_promise_in_words(threshold, said):
    unseen = replace(record(), verdict=VerdictRecord(None, "Too few."), risk_thresholds=[threshold])
    (sentence,) = findings(unseen)[-1:]
    assert said in sentence.replace("\u00a0", " ") and "0.0000" not in sentence and "rely" not in sentence


def test_promises_found_on_seen_data_are_not_to_be_relied_upon():
    seen = replace(record(), verdict=VerdictRecord(True, "By heart."), risk_thresholds=[THRESHOLD, THRESHOLD])
    assert sum("Do not rely on it: it was computed on examples seen" in one for one in findings(seen)) == 2


def test_notes_are_shown_and_are_no_warnings():
    made = replace(record(), notes=["Taken as the <same> classes."])
    assert "Taken as" not in " ".join(caveats(made))
    *plain, page = shown_everywhere(made, "repair")
    assert all("i Taken as the <same> classes." in text for text in plain)
    assert "Taken as the <same> classes." in page and "Taken as" in adaptation_markdown(made)


def test_seen_data_and_the_edge_of_the_grid_are_told():
    seen = replace(record().verdict, seen=True, why="It knows them by heart.")
    assert "has been trained on. It knows them by heart." in caveats(replace(record(), verdict=seen))[0]
    assert any("that was tried: a " in one for one in caveats(record()))


def test_votes_have_a_row_of_their_own():
    made = record("votes")
    keys = [one.key for one in score_rows(made)]
    assert keys == ["error", "nll", "kl", "brier", "ece", "mean_confidence"]
    assert f"KL {made.delivered('softmax').kl:.4f} →" in findings(made)[1]
    assert "the class of the most votes" in " ".join(caveats(made))
    assert "The class of the most votes is taken for the label" in render_adaptation(
        made, evaluations("votes")
    )


def test_the_page_holds_the_numbers_of_the_record():
    page = Page(render_adaptation(record(), evaluations()))
    for title, key, scale, digits in (("Error", "error", 100, 2), ("Negative log-likelihood", "nll", 1, 4)):
        cells = [cell["text"] for cell in row(page, title)]
        wanted = [f"{scale * getattr(one.scores, key):.{digits}f}" for one in record().scored]
        assert [cell.strip() for cell in cells] == wanted
    plots = {plot["id"]: plot for plot in data_of(page)["plots"]}
    assert {"choice-nll", "choice-ece", "choice-error", "fitting"} <= set(plots)
    matched = [point.mean("nll") for point in choice_series(record())[0].points]
    assert plots["choice-nll"]["data"][0]["y"] == pytest.approx(matched, rel=1e-4)
    assert page.all("h1")[0]["text"].strip() == "a <network>"
    assert "'my clouds.npz'" in page.all("pre")[0]["text"]


def test_the_chosen_lambda_is_marked_and_every_one_is_drawn():
    series = choice_series(record("new"))
    assert [one.title for one in series] == ["belief matching", "label smoothing to match"]
    assert [point.kl_weight for point in series[0].points] == [0.01, 0.1]
    assert [len(point.nll) for point in series[0].points] == [2, 2]
    (chosen,) = (point for point in series[0].points if point.chosen)
    assert chosen.kl_weight == record("new").chosen_head.options["kl_weight"]
    assert not any(point.chosen for point in series[1].points)


def test_level_lines_are_means_of_heads_without_a_lambda():
    found = reference_lines(record("new"), "error")
    tried = [one.error for one in record("new").tried if one.kind == "softmax"]
    assert found[0] == pytest.approx(sum(tried) / 2)
    assert not {1, 3} & set(found)  # label smoothing and belief matching have one


def test_the_terminal_shows_before_and_after():
    console = Console(width=120, file=io.StringIO(), highlight=False)
    console.print(*adaptation_tables(record(), evaluations()), crop=False)
    text = console.file.getvalue()
    for title in line_titles(record()):
        assert title in text.replace("→ ", "")
    assert f"{record().delivered('untouched').scores.nll:.4f}" in text
    assert "140 test examples" in text and "chosen" in text and "noise" in text


def test_the_summary_is_plain_text_with_a_star():
    lines = adaptation_summary(record("new")).splitlines()
    (starred,) = (line for line in lines if line.startswith("*"))
    assert "belief matching" in starred and "±" in starred
    assert "AUROC % noise" in lines[0]


def test_the_csv_is_exact():
    lines = list(csv.DictReader(io.StringIO(adaptation_csv(record()))))
    for one in record().scored:
        (found,) = (
            line
            for line in lines
            if (line["name"], line["part"], line["metric"]) == (one.name, "test", "nll")
        )
        assert float(found["value"]) == one.scores.nll
    assert sum(line["part"] == "tried" for line in lines) == 3 * len(record().tried)


def test_markdown_tables_have_as_many_cells_as_heads():
    text = adaptation_markdown(record(), evaluations())
    assert r"\|pipes\| &amp; more" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        counts = {line.replace(r"\|", "").count("|") for line in table.splitlines()}
        assert len(counts) == 1


@pytest.fixture
def one_kind(monkeypatch):
    """Figures of one form, which takes a third of the time."""
    monkeypatch.setattr(figures, "_KINDS", ("svg",))


def test_figures_are_the_choice_and_before_and_after(one_kind):
    files = dict(figures.adaptation_figures(record("new"), evaluations("new")))
    names = ("choice_of_lambda", "reliability", "entropy_noise", "entropy_pipes_more")
    assert set(files) == {f"{name}.svg" for name in names}


def test_the_figure_of_the_choice_shows_means_and_rings_the_chosen():
    first, *_ = figures._choice(record("new")).axes
    lines = {line.get_label(): line for line in first.get_lines()}
    points = choice_series(record("new"))[0].points
    assert lines["belief matching"].get_xdata().tolist() == [point.kl_weight for point in points]
    means = [point.mean("nll") for point in points]
    assert lines["belief matching"].get_ydata().tolist() == pytest.approx(means)
    assert lines["chosen λ"].get_ydata()[0] == pytest.approx(min(means))


def test_a_directory_is_drawn_again_from_its_records(one_kind, tmp_path, capsys):
    page = write_adaptation(tmp_path, record(), evaluations(), head=b"weights")
    assert page == tmp_path / "report.html" and (tmp_path / "head.safetensors").read_bytes() == b"weights"
    for given in (tmp_path, tmp_path / "record.json"):
        assert main(["report", f"{given}", "--out", f"{tmp_path / 'again.html'}"]) == 0
        assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
    (tmp_path / "evaluations" / "untouched.json").unlink()
    capsys.readouterr()
    assert main(["report", f"{tmp_path}"]) == 2
    assert "evaluations/untouched.json: No such file" in capsys.readouterr().err


def test_a_page_made_again_goes_to_the_current_directory(one_kind, tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    page = write_adaptation(tmp_path / "run", record(), evaluations())
    made = page.read_bytes()
    page.unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert (tmp_path / "report.html").read_bytes() == made and not page.exists()
    assert main(["report", "--help"]) == 0
    assert "current directory" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_names_are_data():
    page = render_adaptation(record(), evaluations())
    assert NAMES[2] not in page and "a <network>" not in page


def test_missing_evaluations_are_refused():
    with pytest.raises(ValueError, match="`evaluations`"):
        adaptation_files(record(), evaluations()[:1])
    with pytest.raises(ValueError, match="`record`"):
        render_adaptation(replace(record(), scored=record().scored[:1]), evaluations())
