"""The plots of the page, as plotly's plain dictionaries. Names are data: plotly must read them as text."""

from collections.abc import Sequence

from beliefmatch.experiments.evaluation_record import Curve, EvaluationRecord, RiskThresholdRecord
from beliefmatch.report.evaluation_metrics import sides
from beliefmatch.report.evaluation_scores import detection_of, score_names
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import answers_text, class_labels, count_text
from beliefmatch.report.plot_parts import (
    REFERENCE,
    Plot,
    as_text,
    axis,
    diagonal,
    layout,
    line,
    rounded,
    stroke,
)

__all__ = [
    "confusion_plot",
    "entropy_plot",
    "risk_coverage_plot",
    "roc_plot",
]


def entropy_plot(
    models: Sequence[EvaluationRecord], index: int, ood: str, strange: Curve | None, top: float
) -> Plot:
    """The entropy's density of one model on known and on OOD examples; `top` is shared by the panels."""
    model, looks = models[index], look(index)
    hover = "<b>%{fullData.name}</b><br>entropy %{x:.2f}, density %{y:.2f}<extra></extra>"
    meta = {"model": index}
    known = line(
        model.entropy.x,
        model.entropy.y,
        name="test examples",
        meta=meta,
        fill="tozeroy",
        fillcolor="rgba(128,128,128,0.25)",
        line={"color": REFERENCE, "width": 1.75},
        hovertemplate=hover,
    )
    traces = [known]
    if strange is not None:
        dashed = {"color": looks.colour, "width": 2.25, "dash": "6px,2.5px"}
        options = {"fill": "tozeroy", "fillcolor": _tint(looks.colour), "line": dashed, "meta": meta}
        traces.append(line(strange.x, strange.y, name=as_text(ood, 24), hovertemplate=hover, **options))
    x = axis("predictive entropy (nats)", range=[0, max([*model.entropy.x, 0.01])])
    y = axis("density", range=[0, 1.06 * top], nticks=4)
    return Plot(traces, layout(x, y, margin={"l": 48, "r": 16, "t": 8, "b": 44}))


def _tint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def roc_plot(models: Sequence[EvaluationRecord], name: str | None) -> Plot:
    """One curve for each model and score; the page shows one score at a time."""
    ood, in_distribution = sides(name)
    shares = f"{in_distribution} flagged %{{x:.1%}}, {ood} flagged %{{y:.1%}}"
    hover = f"<b>%{{fullData.name}}</b><br>{shares}<extra></extra>"
    traces = [diagonal()]
    for score in score_names(models):
        for index, model in enumerate(models):
            found = detection_of(model, name, score)
            if found is not None and found.roc.x:
                meta = {"model": index, "score": score}
                options = {"name": as_text(model.name), "meta": meta, "line": stroke(index)}
                traces.append(line(found.roc.x, found.roc.y, hovertemplate=hover, **options))
    x = axis(f"{in_distribution} flagged", range=[-0.01, 1], dtick=0.2, tickformat=".0%")
    y = axis(f"{ood} flagged", range=[0, 1.02], tickformat=".0%")
    return Plot(traces, layout(x, y))


def risk_coverage_plot(models: Sequence[EvaluationRecord]) -> Plot:
    """The error among the most confident answers, and the risk thresholds."""
    hover = "<b>%{fullData.name}</b><br>answers %{x:.1%}, errs in %{y:.2%} of them<extra></extra>"
    traces = []
    for index, model in enumerate(models):
        curve, common = model.risk_coverage, {"name": as_text(model.name), "meta": {"model": index}}
        traces.append(line(curve.x, curve.y, line=stroke(index), hovertemplate=hover, **common))
        kept = [found for found in model.risk_thresholds if found.threshold is not None]
        traces.append(
            line(
                [found.coverage for found in kept],
                [found.risk for found in kept],
                mode="markers",
                text=[_risk_threshold_text(found) for found in kept],
                marker={
                    "symbol": f"{look(index).plotly_marker}-open",
                    "size": 11,
                    "color": look(index).colour,
                    "line": {"width": 2},
                },
                hovertemplate="<b>%{fullData.name}</b><br>%{text}<extra></extra>",
                **common,
            )
        )
    x = axis("coverage (share answered)", range=[0, 1.02], tickformat=".0%")
    y = axis("risk (error among answers)", rangemode="tozero", tickformat=".1~%")
    return Plot(traces, layout(x, y))


def _risk_threshold_text(found: RiskThresholdRecord) -> str:
    parts = [f"risk threshold: error below {100 * found.risk:g}\u00a0%", *answers_text(found)]
    return "<br>".join(part for part in parts if part).replace("%", "&#37;")


def confusion_plot(model: EvaluationRecord, matrix: list[list[int]], index: int) -> Plot:
    """A heat map of many classes: shares of each true class, so that rare classes show as well."""
    labels = [as_text(label) for label in class_labels(model, 24)]
    shares = [rounded([count / max(sum(row), 1) for count in row]) for row in matrix]
    about = [
        [
            f"true {labels[i]}<br>predicted {labels[j]}<br>{count_text(count, 'example')}"
            for j, count in enumerate(row)
        ]
        for i, row in enumerate(matrix)
    ]
    trace = {
        "type": "heatmap",
        "z": shares,
        "text": about,
        "meta": {"model": index},
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "rgba(0,114,178,0)"], [0.05, "rgba(0,114,178,0.35)"], [1, "rgba(0,114,178,1)"]],
        "showscale": False,
        "hovertemplate": "%{text}, %{z:.1%} of the class<extra></extra>",
    }
    x = axis("predicted class", constrain="domain", showgrid=False)
    y = axis("true class", autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False)
    return Plot([trace], layout(x, y))
