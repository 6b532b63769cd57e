"""One page that shows how good models are: a single HTML file that asks the network for nothing."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from beliefmatch._environment import needs
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_metrics import metric_title, score_title
from beliefmatch.report.evaluation_rows import (
    detection_sections,
    has_differences,
    same_examples,
    summary,
)
from beliefmatch.report.evaluation_scores import headline_score, score_names
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import (
    answers_text,
    class_label,
    ood_names,
    presentable,
    shorten,
)
from beliefmatch.report.page_classes import class_note
from beliefmatch.report.page_facts import facts
from beliefmatch.report.page_sections import Card, cards, confusions, risk_thresholds
from beliefmatch.report.page_words import percent

__all__ = ["render_models", "render_page"]

_MOST_EXAMPLES = 24  # of mistakes and of doubtful ones, a model
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def render_page(records: Sequence[EvaluationRecord]) -> str:
    """The report of one or more models as a single HTML file, which needs neither network nor server."""
    return render_models(presentable(records, caller="render_page"), caller="render_page")


def render_models(
    models: Sequence[EvaluationRecord],
    *,
    caller: str,
    comparison: Mapping[str, Any] | None = None,
    first_cards: Mapping[str, list[Card]] | None = None,
) -> str:
    """The page of records that are presentable; `comparison` goes before all else, with cards of its own.

    It names its `template` and `styles`, and what the page as a whole is called by it: `kicker`,
    `page_title`, `title`, `lead`, the `contents` of its part, and `part`, the name of what follows.
    """
    with needs("jinja2 and plotly", extra="report", caller=caller):
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs

        environment = _environment()
    plotly, script = (_script(text) for text in (get_plotlyjs(), _file("page.js")))
    all_cards = {**(first_cards or {}), **cards(models)}
    style = "".join(map(_file, ("page.css", *(comparison["styles"] if comparison else ()))))
    return environment.get_template("page.html.j2").render(
        **_content(models),
        cards=all_cards,
        comparison=comparison,
        policy=_policy(plotly, script),
        plotly=Markup(plotly),
        script=Markup(script),
        style=Markup(style),
        data=Markup(_json(_data(models, all_cards))),
    )


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("beliefmatch.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent,
        shorten=shorten,
        metric_title=metric_title,
        answers=answers_text,
    )
    environment.globals.update(class_label=class_label, score_title=score_title, look=look, picture=_picture)
    return environment


def _content(models: Sequence[EvaluationRecord]) -> dict[str, Any]:
    sections = summary(models)
    return {
        "models": models,
        "same_examples": same_examples(models),
        "paired": has_differences(sections),
        "ood": ood_names(models),
        "sections": sections,
        "detection": [section for section in detection_sections(models) if section.rows],
        "scores": score_names(models),
        "headline": headline_score(models),
        "risk_thresholds": risk_thresholds(models),
        "confusions": confusions(models),
        "facts": facts(models),
        "conventions": _conventions(models),
        "most": _MOST_EXAMPLES,
        "class_note": class_note(models),
    }


def _conventions(models: Sequence[EvaluationRecord]) -> list[tuple[str, str, list[int]]]:
    """Metric, convention and the models that follow it; models evaluated alike share a line."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, model in enumerate(models):
        for key, text in model.conventions.items():
            found.setdefault((key, text), []).append(index)
    return [(key, text, who) for (key, text), who in found.items()]


def _data(models: Sequence[EvaluationRecord], all_cards: dict[str, list[Card]]) -> dict[str, Any]:
    """What the page's script needs."""
    drawn = [card for group in all_cards.values() for card in group]
    return {
        "models": len(models),
        "plots": [
            {"id": card.id, "data": card.plot.data, "layout": card.plot.layout, "alts": card.alts}
            for card in drawn
        ],
    }


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in, nor a line of a script."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script(text: str) -> str:
    """A script as the browser will read it, or an error if it would end early."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise ValueError("render_page: a script must not hold the end of its own element, got one that does.")
    return text


def _policy(*scripts: str) -> str:
    """No network at all, and no script but these: what slips through the escaping still does not run."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _picture(image: str | None) -> str | None:
    """The address of an embedded PNG, if it is one."""
    whole = image is not None and image.startswith("iVBORw0KGgo") and _BASE64.fullmatch(image)
    return f"data:image/png;base64,{image}" if whole else None


def _file(name: str) -> str:
    return resources.files("beliefmatch.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
