"""The picture of a belief for notebooks: HTML with SVG inside, drawn without a chart library.

Ink and lines take the colour of the surrounding text, so that one picture serves light and dark themes.
"""

import base64
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from beliefmatch import dirichlet
from beliefmatch._png import png_bytes

__all__ = ["BeliefItem", "belief_html"]

_ACCENT = (213, 94, 0)  # the colour of belief matching in every figure
_FILL = f"rgb{_ACCENT}"
_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_MOST_BARS = 5
_SIDE, _MARGIN = 132.0, 20.0  # of the triangle, in pixels
_HEIGHT = _SIDE * math.sqrt(3) / 2
_PIXELS = 2  # of the density, for each pixel of the page
_WIDTH, _ROW = _SIDE + 2 * _MARGIN, 22.0
_TRACK = (30.0, 90.0)  # beginning and length of a bar


class BeliefItem(NamedTuple):
    """What is drawn of one belief; lists have one entry for each class."""

    log_alpha: list[float]
    probs: list[float]
    deviation: list[float]
    """Standard deviation of each class probability."""
    log_precision: float
    mutual_information: float


def belief_html(
    items: Sequence[BeliefItem], labels: Sequence[str], *, batch_shape: tuple[int, ...], classes: int
) -> str:
    """The first items of a batch side by side, below a line that describes all of it.

    Args:
        items: Beliefs to draw.
        labels: Their index in the batch; an empty one for a belief without a batch.
        batch_shape: Shape of the whole batch.
        classes: Number of classes.
    """
    total = math.prod(batch_shape)
    size = " × ".join(f"{part:,}" for part in batch_shape)
    over = f"over {classes:,} {'class' if classes == 1 else 'classes'}"
    title = f"Belief {over}" if not batch_shape else f"{size} {'belief' if total == 1 else 'beliefs'} {over}"
    draw = _simplex if classes == 3 else _bars
    cards = "".join(_card(item, label, draw(item)) for item, label in zip(items, labels, strict=True))
    if total > len(items):
        more = f"… and {total - len(items):,} more"
        cards += f'<div style="align-self:center;padding:0 8px;opacity:.6">{more}</div>'
    what = (
        "Density of the class probabilities; the dot is their mean."
        if classes == 3
        else "Mean probability of the likeliest classes, ± one standard deviation of the belief."
    )
    note = f'<div style="opacity:.6;margin-top:6px">{what}</div>' if items else ""
    return (
        f'<div style="font:12px/1.45 {_FONT};color:inherit">'
        f'<div style="font-weight:600;margin-bottom:6px">{title}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:10px">{cards}</div>{note}</div>'
    )


def _card(item: BeliefItem, label: str, drawing: str) -> str:
    index = f'<span style="opacity:.6">[{label}]</span> ' if label else ""
    if any(map(math.isnan, item.probs)):
        verdict, doubt = "not a number", ""
    else:
        best = max(range(len(item.probs)), key=item.probs.__getitem__)
        verdict = f"class {best} · {_percent(item.probs[best])}"
        precision, information = _power(item.log_precision), f"{item.mutual_information:.2g}"
        doubt = f"precision {precision}<br>mutual information {information}"
    return (
        f'<div style="width:{_WIDTH:g}px;padding:8px 10px;border:1px solid rgba(128,128,128,.35);'
        f'border-radius:8px"><div>{index}<b>{verdict}</b></div>{drawing}'
        f'<div style="opacity:.6;font-size:11px">{doubt}</div></div>'
    )


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}"
    if share < 1 and text == "100.0":
        return "&gt;99.9 %"
    return f"{text} %" if share == 0 or text != "0.0" else "&lt;0.1 %"


def _power(log_value: float) -> str:
    """e^log_value, which may be beyond all floating-point numbers."""
    exponent = log_value / math.log(10)
    return f"{math.exp(log_value):.3g}" if -3 <= exponent < 6 else f"10<sup>{exponent:.0f}</sup>"


def _svg(height: float, content: str, title: str) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH:g} {height:g}" width="{_WIDTH:g}" height="{height:g}" '
        f'style="display:block;margin:4px 0;font:11px {_FONT}"><title>{title or "not a number"}</title>'
        f"{content}</svg>"
    )


# Three classes


def _simplex(item: BeliefItem) -> str:
    """The triangle of class probabilities: class 0 at the left, 1 at the right, 2 on top."""
    left, top = _MARGIN, 16.0
    corners = ((left, top + _HEIGHT), (left + _SIDE, top + _HEIGHT), (left + _SIDE / 2, top))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    parts = [f'<polygon points="{points}" fill="currentColor" fill-opacity=".04"/>']
    is_number = not any(map(math.isnan, item.probs))
    if is_number:
        parts.append(
            f'<image x="{left:g}" y="{top:g}" width="{_SIDE:g}" height="{_HEIGHT:.2f}" '
            f'preserveAspectRatio="none" href="data:image/png;base64,{_density(item)}"/>'
        )
    parts.append(
        f'<polygon points="{points}" fill="none" stroke="currentColor" stroke-opacity=".45" '
        'stroke-linejoin="round"/>'
    )
    names = ((left - 9, top + _HEIGHT + 4), (left + _SIDE + 9, top + _HEIGHT + 4), (left + _SIDE / 2, 11.0))
    parts += [
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="currentColor">{name}</text>'
        for name, (x, y) in enumerate(names)
    ]
    title = ""
    if is_number:
        x, y = (
            sum(p * corner[axis] for p, corner in zip(item.probs, corners, strict=True)) for axis in (0, 1)
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="currentColor" stroke="{_FILL}" '
            'stroke-width="1.4"/>'
        )
        title = ", ".join(f"class {name}: {_percent(p)}" for name, p in enumerate(item.probs))
    return _svg(top + _HEIGHT + 10, "".join(parts), title)


def _density(item: BeliefItem) -> str:
    """The density on the triangle as a PNG whose opacity grows with its ratio to the uniform density."""
    points, inside = _grid()
    log_alpha = torch.tensor(item.log_alpha, dtype=torch.float64, device="cpu")
    ratio = (dirichlet.log_prob(log_alpha, points) - math.log(2.0)).clamp(max=20.0).exp().numpy()
    opacity = 0.9 * -np.expm1(-0.35 * np.nan_to_num(ratio)) * inside
    pixels = np.empty((*inside.shape, 4), dtype=np.uint8)
    pixels[..., :3] = _ACCENT
    pixels[..., 3] = (255 * opacity).round()
    return base64.b64encode(png_bytes(pixels)).decode("ascii")


@lru_cache(maxsize=1)
def _grid() -> tuple[torch.Tensor, np.ndarray]:
    """Class probabilities (H, W, 3) at every pixel, and how much of the pixel is inside the triangle."""
    width, height = round(_PIXELS * _SIDE), round(_PIXELS * _HEIGHT)
    x = (np.arange(width) + 0.5) / width
    up = 1 - (np.arange(height)[:, None] + 0.5) / height
    probs = np.stack(np.broadcast_arrays(1 - x - up / 2, x - up / 2, up), axis=-1)
    inside = np.clip(probs.min(axis=-1) * height + 0.5, 0.0, 1.0)
    probs = np.clip(probs, 0.25 / height, None)  # the density may be infinite on the edge
    return torch.from_numpy(probs / probs.sum(axis=-1, keepdims=True)), inside


# Any other number of classes


def _bars(item: BeliefItem) -> str:
    """The likeliest classes as bars with whiskers, and how much is left for the others."""
    order = sorted(range(len(item.probs)), key=lambda index: -item.probs[index])[:_MOST_BARS]
    start, length = _TRACK
    parts = []
    for place, index in enumerate(order):
        y, p = place * _ROW + _ROW / 2, item.probs[index]
        parts.append(
            f'<text x="{start - 6:g}" y="{y + 4:g}" text-anchor="end" fill="currentColor">{index}</text>'
            f'<rect x="{start:g}" y="{y - 5:g}" width="{length:g}" height="10" rx="2" '
            'fill="currentColor" fill-opacity=".08"/>'
        )
        if math.isnan(p):
            continue
        ends = (max(0.0, p - item.deviation[index]), min(1.0, p + item.deviation[index]))
        low, high = (start + length * end for end in ends)
        parts.append(
            f'<rect x="{start:g}" y="{y - 5:g}" width="{length * p:.2f}" height="10" rx="2" '
            f'fill="{_FILL}" fill-opacity="{1 if place == 0 else 0.6}"/>'
            f'<path d="M{low:.2f} {y:g}H{high:.2f}M{low:.2f} {y - 3:g}v6M{high:.2f} {y - 3:g}v6" '
            'stroke="currentColor" stroke-opacity=".75" fill="none"/>'
            f'<text x="{_WIDTH:g}" y="{y + 4:g}" text-anchor="end" fill="currentColor">{_percent(p)}</text>'
        )
    height, left_out = len(order) * _ROW, len(item.probs) - len(order)
    if left_out:
        rest = max(0.0, 1.0 - sum(item.probs[index] for index in order))
        others = f"{left_out:,} other{'' if left_out == 1 else 's'}"
        parts.append(
            f'<text x="{start:g}" y="{height + 13:g}" fill="currentColor" fill-opacity=".6">{others}</text>'
            f'<text x="{_WIDTH:g}" y="{height + 13:g}" text-anchor="end" fill="currentColor" '
            f'fill-opacity=".6">{"" if math.isnan(rest) else _percent(rest)}</text>'
        )
        height += 18
    is_number = not any(map(math.isnan, item.probs))
    title = ", ".join(f"class {index}: {_percent(item.probs[index])}" for index in order if is_number)
    return _svg(height, "".join(parts), title)
