"""`beliefmatch export`: the network of a run as one file, for programs without beliefmatch or torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from beliefmatch._files import refuse_url
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import printable, user_errors, write_errors

if TYPE_CHECKING:
    from beliefmatch.integrations.export import ExportedFile

__all__ = ["export"]

_SHOWN_NAMES = 10


def export(
    context: typer.Context,
    run: opt.Run,
    format: opt.ExportFormat = None,
    outputs: opt.ExportOutputs = None,
    out: opt.ExportFile = None,
    with_preprocessing: opt.WithPreprocessing = False,
    opset: opt.Opset = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Export the network of a run to ONNX, TorchScript or torch.export.

    The file returns probabilities and measures of uncertainty for any batch size. It is compared with the
    network before it takes its name.
    """
    with user_errors(context), write_errors(context, Path(out or ".")):
        from beliefmatch._validate import naming_arguments
        from beliefmatch.integrations.export_run import export_run

        refuse_url(out or "", caller="export")
        with naming_arguments("export", path="out"):
            made = export_run(
                run,
                out,
                format=format,  # type: ignore[arg-type]
                outputs=None if outputs is None else [name.strip() for name in outputs.split(",")],
                with_preprocessing=with_preprocessing,
                opset=opset,
                overwrite=overwrite,
            )
    for line in _summary(made):
        typer.echo(printable(line))
    typer.echo(made.path)


def _summary(made: "ExportedFile") -> list[str]:
    record = made.record
    lines = [f"input {one.name}: {one.dtype} {_shape(one.shape)}" for one in record.inputs]
    lines += [f"  {name}: {_words(value)}" for name, value in (record.preprocessing or {}).items()]
    lines += [
        f"output {one.name}: {one.dtype} {_shape(one.shape)}. {one.description}" for one in record.outputs
    ]
    if names := record.class_names:
        lines.append(f"classes: {_words(names)}")
    sizes = ", ".join(f"{size}" for size in sorted(set(made.batch_sizes)))
    worst = max(made.differences.values())
    lines.append(f"verified: largest difference from the network {worst:.1g}, in batches of {sizes}")
    return lines


def _shape(sizes: list[int | str]) -> str:
    return f"({', '.join(f'{size}' for size in sizes)}{',' if len(sizes) == 1 else ''})"


def _words(value: Any) -> str:
    """Numbers, or the first few names, of the preprocessing; what is longer is in the metadata alone."""
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        names = list(value) if isinstance(value, dict) else [one["name"] for one in value]
        return f"{_words(names)}; see the metadata of the file" if names else "none"
    if not isinstance(value, list):
        return f"{value}"
    shown = [f"{one:.6g}" if isinstance(one, float | int) else f"{one}" for one in value[:_SHOWN_NAMES]]
    return ", ".join(shown) + (f", ... ({len(value)} in all)" if len(value) > _SHOWN_NAMES else "")
